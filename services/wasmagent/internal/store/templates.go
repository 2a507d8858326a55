package store

import (
	"context"
	"database/sql"
	"errors"

	"google.golang.org/protobuf/proto"

	wasmagentv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
	"github.com/sluice-mesh/sluice/services/internal/sqlstore"
)

// Tenants returns the tenants that have templates.
func (s *Store) Tenants(ctx context.Context) (all []string, err error) {
	err = s.db.DoUnqueued(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		all = nil
		return tx.Each(ctx, func(rows *sql.Rows) error {
			all = append(all, "")
			return rows.Scan(&all[len(all)-1])
		}, "SELECT DISTINCT tenant FROM templates ORDER BY tenant")
	})
	return all, err
}

// Templates returns the templates of a tenant and their version. If the version equals the known version, it returns no
// templates. A tenant with version 0 has no templates.
func (s *Store) Templates(ctx context.Context, tenant string, known int64) (version int64, all []*wasmagentv1.Template, err error) {
	err = s.db.DoUnqueued(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		version, all = 0, nil
		err := tx.QueryRowContext(ctx, "SELECT version FROM galleries WHERE tenant = $1", tenant).Scan(&version)
		if errors.Is(err, sql.ErrNoRows) || err == nil && version == known {
			return nil
		}
		if err != nil {
			return err
		}
		return tx.Each(ctx, func(rows *sql.Rows) error {
			var text []byte
			if err := rows.Scan(&text); err != nil {
				return err
			}
			t := new(wasmagentv1.Template)
			all = append(all, t)
			return proto.Unmarshal(text, t)
		}, "SELECT template FROM templates WHERE tenant = $1 ORDER BY id", tenant)
	})
	return version, all, err
}

// AddTemplates stores new templates of a tenant, either all or none. exists is true if one of the ids is already used,
// so that nothing was stored. If untrusted is true, AddTemplates quarantines each template whose id an operator has
// accepted before.
func (s *Store) AddTemplates(ctx context.Context, tenant string, untrusted bool, templates []*wasmagentv1.Template) (exists bool, err error) {
	errTaken := errors.New("the template exists")
	err = s.changeTemplates(ctx, tenant, func(ctx context.Context, tx *sqlstore.Tx) error {
		for _, t := range templates {
			if untrusted && !t.GetQuarantined() {
				if err := tx.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM accepted WHERE tenant = $1 AND id = $2)", tenant, t.GetId()).Scan(&t.Quarantined); err != nil {
					return err
				}
			}
			if !untrusted {
				if _, err := tx.ExecContext(ctx, "INSERT INTO accepted (tenant, id) VALUES ($1, $2) ON CONFLICT DO NOTHING", tenant, t.GetId()); err != nil {
					return err
				}
			}
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

// AcceptTemplate calls accept with a template of a tenant, stores the changed template, and records that the template's
// id was accepted. found is false if the tenant has no such template.
func (s *Store) AcceptTemplate(ctx context.Context, tenant, id string, accept func(*wasmagentv1.Template) error) (found bool, err error) {
	err = s.changeTemplates(ctx, tenant, func(ctx context.Context, tx *sqlstore.Tx) error {
		found = false
		var text []byte
		err := tx.QueryRowContext(ctx, "SELECT template FROM templates WHERE tenant = $1 AND id = $2", tenant, id).Scan(&text)
		if errors.Is(err, sql.ErrNoRows) {
			return nil
		}
		if err != nil {
			return err
		}
		t := new(wasmagentv1.Template)
		if err := proto.Unmarshal(text, t); err != nil {
			return err
		}
		if err := accept(t); err != nil {
			return err
		}
		if text, err = proto.Marshal(t); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, "INSERT INTO accepted (tenant, id) VALUES ($1, $2) ON CONFLICT DO NOTHING", tenant, id); err != nil {
			return err
		}
		found = true
		_, err = tx.ExecContext(ctx, "UPDATE templates SET template = $3 WHERE tenant = $1 AND id = $2", tenant, id, text)
		return err
	})
	return found, err
}

// RemoveTemplate removes a template.
func (s *Store) RemoveTemplate(ctx context.Context, tenant, id string) error {
	return s.changeTemplates(ctx, tenant, func(ctx context.Context, tx *sqlstore.Tx) error {
		_, err := tx.ExecContext(ctx, "DELETE FROM templates WHERE tenant = $1 AND id = $2", tenant, id)
		return err
	})
}

// changeTemplates changes the templates of a tenant and increments their version, in one transaction.
func (s *Store) changeTemplates(ctx context.Context, tenant string, fn func(ctx context.Context, tx *sqlstore.Tx) error) error {
	return s.db.Do(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		if _, err := tx.ExecContext(ctx, `INSERT INTO galleries (tenant, version) VALUES ($1, 1)
			ON CONFLICT (tenant) DO UPDATE SET version = galleries.version + 1`, tenant); err != nil {
			return err
		}
		return fn(ctx, tx)
	})
}
