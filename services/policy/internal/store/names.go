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

// ListedTools returns the names of the tools in the newest whole lists of each server. It reads a SQLite database,
// which another process may have open, and writes nothing. The result has no entry for a server without whole lists.
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
