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

// Keep keeps new templates of a tenant: all or none. It tells whether one is there already.
func (s *Store) Keep(ctx context.Context, tenant string, templates []*wasmagentv1.Template) (taken bool, err error) {
	errTaken := errors.New("a template is there already")
	err = s.db.Do(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		for _, t := range templates {
			text, err := proto.Marshal(t)
			if err != nil {
				return err
			}
			result, err := tx.ExecContext(ctx, "INSERT INTO templates (tenant, id, template) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING", tenant, t.GetId(), text)
			if err != nil {
				return err
			}
			if n, err := result.RowsAffected(); err != nil || n == 0 {
				return errors.Join(errTaken, err)
			}
		}
		return nil
	})
	if errors.Is(err, errTaken) {
		return true, nil
	}
	return false, err
}

// Replace replaces a template of a tenant.
func (s *Store) Replace(ctx context.Context, tenant string, t *wasmagentv1.Template) error {
	text, err := proto.Marshal(t)
	if err != nil {
		return err
	}
	return s.db.Do(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		_, err := tx.ExecContext(ctx, "UPDATE templates SET template = $3 WHERE tenant = $1 AND id = $2", tenant, t.GetId(), text)
		return err
	})
}

// Discard forgets a template.
func (s *Store) Discard(ctx context.Context, tenant, id string) error {
	return s.db.Do(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		_, err := tx.ExecContext(ctx, "DELETE FROM templates WHERE tenant = $1 AND id = $2", tenant, id)
		return err
	})
}
