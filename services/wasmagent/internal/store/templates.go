package store

import (
	"context"
	"errors"

	"google.golang.org/protobuf/proto"

	wasmagentv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
	"github.com/sluice-mesh/sluice/services/internal/sqlstore"
)

// Templates are the templates that are kept, by tenants.
func (s *Store) Templates(ctx context.Context) (all map[string][]*wasmagentv1.Template, err error) {
	err = s.db.Look(ctx, func(ctx context.Context, tx *sqlstore.Tx) (err error) {
		all = make(map[string][]*wasmagentv1.Template)
		rows, err := tx.QueryContext(ctx, "SELECT tenant, template FROM templates ORDER BY tenant, id")
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, rows.Close()) }()
		for rows.Next() {
			var tenant string
			var text []byte
			if err := rows.Scan(&tenant, &text); err != nil {
				return err
			}
			t := new(wasmagentv1.Template)
			if err := proto.Unmarshal(text, t); err != nil {
				return err
			}
			all[tenant] = append(all[tenant], t)
		}
		return rows.Err()
	})
	return all, err
}

// Keep keeps templates of a tenant: all or none. One of the same id is replaced.
func (s *Store) Keep(ctx context.Context, tenant string, templates []*wasmagentv1.Template) error {
	return s.db.Do(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		for _, t := range templates {
			text, err := proto.Marshal(t)
			if err != nil {
				return err
			}
			if _, err := tx.ExecContext(ctx, `INSERT INTO templates (tenant, id, template) VALUES ($1, $2, $3)
				ON CONFLICT (tenant, id) DO UPDATE SET template = $3`, tenant, t.GetId(), text); err != nil {
				return err
			}
		}
		return nil
	})
}

// Discard forgets a template.
func (s *Store) Discard(ctx context.Context, tenant, id string) error {
	return s.db.Do(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		_, err := tx.ExecContext(ctx, "DELETE FROM templates WHERE tenant = $1 AND id = $2", tenant, id)
		return err
	})
}
