package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/go-json-experiment/json"

	"github.com/sluice-mesh/sluice/services/internal/sqlstore"
	"github.com/sluice-mesh/sluice/services/policy/internal/catalog"
	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
)

// ListedTools returns the tools in the newest complete tool list of each server, with their schemas. The result omits
// servers without a complete list. ListedTools only reads the SQLite database in the given file. Another process may
// have the database open.
func ListedTools(ctx context.Context, file string) (lists engine.ToolLists, err error) {
	db, err := sqlstore.OpenReadOnly(file)
	if err != nil {
		return engine.ToolLists{}, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	servers, err := readServers(ctx, db, file)
	if err != nil {
		return engine.ToolLists{}, err
	}
	lists.Tools = make(map[string][]engine.ListedTool, len(servers))
	schemas, definitions := make(map[string]engine.Schema), make(map[string]string)
	for _, s := range servers {
		if list := s.ToolList(); list != nil {
			lists.Tools[s.Name] = list
		}
		for _, name := range s.ListedNow() {
			var text string
			row := db.QueryRowContext(ctx, "SELECT text FROM definitions WHERE server = $1 AND digest = $2", s.Name, hexOf(s.Tools[name].Pinned().Digest))
			if err := row.Scan(&text); err == nil { // if the definition is not stored, the schema is unknown
				schemas[s.Name+"/"+name], definitions[s.Name+"/"+name] = catalog.SchemaOf(text), text
			}
		}
	}
	lists.Schema = func(server, tool string) engine.Schema { return schemas[server+"/"+tool] }
	lists.Unusable = func(server, tool string) string {
		text, known := definitions[server+"/"+tool]
		if !known {
			return ""
		}
		return catalog.UnusableSchema(text)
	}
	return lists, nil
}

// Servers returns the servers in the catalog by name. Like [ListedTools], it only reads the SQLite database in the
// given file.
func Servers(ctx context.Context, file string) (out map[string]*catalog.Server, err error) {
	db, err := sqlstore.OpenReadOnly(file)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	servers, err := readServers(ctx, db, file)
	if err != nil {
		return nil, err
	}
	out = make(map[string]*catalog.Server, len(servers))
	for _, s := range servers {
		out[s.Name] = s
	}
	return out, nil
}

func readServers(ctx context.Context, db *sql.DB, file string) ([]*catalog.Server, error) {
	rows, err := db.QueryContext(ctx, "SELECT state FROM servers")
	if err != nil {
		return nil, fmt.Errorf("read the catalog %s: %w", file, err)
	}
	defer rows.Close() //nolint:errcheck // Err reports the error
	var out []*catalog.Server
	for rows.Next() {
		var state sql.RawBytes
		server := new(catalog.Server)
		if err := rows.Scan(&state); err != nil {
			return nil, fmt.Errorf("read the catalog %s: %w", file, err)
		}
		if err := json.Unmarshal(state, server); err != nil {
			return nil, fmt.Errorf("read a server of the catalog %s: %w", file, err)
		}
		out = append(out, server)
	}
	return out, rows.Err()
}
