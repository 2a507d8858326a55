package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/go-json-experiment/json"

	"github.com/sluice-mesh/sluice/services/internal/sqlstore"
	"github.com/sluice-mesh/sluice/services/policy/internal/catalog"
)

// ListedTools returns the names of the tools that each server lists now, from SQLite's file, even while another
// process has it open. Servers that were never listed are left out. It writes nothing.
func ListedTools(ctx context.Context, file string) (tools map[string][]string, err error) {
	db, err := sqlstore.OpenReadOnly(file)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	rows, err := db.QueryContext(ctx, "SELECT state FROM servers")
	if err != nil {
		return nil, fmt.Errorf("read the catalog %s: %w", file, err)
	}
	defer rows.Close() //nolint:errcheck // Err reports the error
	tools = make(map[string][]string)
	for rows.Next() {
		var state sql.RawBytes
		var server catalog.Server
		if err := rows.Scan(&state); err != nil {
			return nil, fmt.Errorf("read the catalog %s: %w", file, err)
		}
		if err := json.Unmarshal(state, &server); err != nil {
			return nil, fmt.Errorf("read a server of the catalog %s: %w", file, err)
		}
		if len(server.Lists) > 0 {
			tools[server.Name] = server.ListedNow()
		}
	}
	return tools, rows.Err()
}
