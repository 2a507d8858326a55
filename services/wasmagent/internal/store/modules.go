package store

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	wasmstorev1 "github.com/sluice-mesh/sluice/gen/sluice/wasmstore/v1"
	"github.com/sluice-mesh/sluice/services/internal/sqlstore"
)

const (
	// moduleDays is how many days an unused module is stored. They are counted from the last day on which the module
	// was the current module of its guest.
	moduleDays = 7
	// modulePage is how many agents are read at a time to find the modules in use.
	modulePage = 200
)

// ErrModuleUnknown means that the module is not stored, or that the stored module is damaged.
var ErrModuleUnknown = errors.New("the module is not stored")

// PutModule stores the current module of a guest. digest is the module's SHA-256 in hexadecimal digits. If the module
// is already stored, PutModule records that the module is still current today.
func (s *Store) PutModule(ctx context.Context, digest, guest string, module []byte) error {
	return s.db.Do(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		result, err := tx.ExecContext(ctx, "UPDATE modules SET day = $2 WHERE digest = $1", digest, dayOf(tx.Now))
		if err != nil {
			return err
		}
		if n, err := result.RowsAffected(); err != nil || n == 1 {
			return err
		}
		_, err = tx.ExecContext(ctx, "INSERT INTO modules (digest, guest, module, day) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING", digest, guest, module, dayOf(tx.Now))
		return err
	})
}

// Module returns the module with the given digest, and the name of the guest whose current or earlier module it is. It
// returns [ErrModuleUnknown] if the module is not stored.
func (s *Store) Module(ctx context.Context, digest string) (guest string, module []byte, err error) {
	err = s.db.DoUnqueued(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		err := tx.QueryRowContext(ctx, "SELECT guest, module FROM modules WHERE digest = $1", digest).Scan(&guest, &module)
		if errors.Is(err, sql.ErrNoRows) {
			return ErrModuleUnknown
		}
		return err
	})
	if err != nil {
		return "", nil, err
	}
	if sum := sha256.Sum256(module); hex.EncodeToString(sum[:]) != digest {
		return "", nil, fmt.Errorf("%w: the stored bytes have another digest", ErrModuleUnknown)
	}
	return guest, module, nil
}

// ModuleGuest returns the name of the guest whose current or earlier module has the given digest. It returns
// [ErrModuleUnknown] if the module is not stored.
func (s *Store) ModuleGuest(ctx context.Context, digest string) (guest string, err error) {
	err = s.db.DoUnqueued(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		err := tx.QueryRowContext(ctx, "SELECT guest FROM modules WHERE digest = $1", digest).Scan(&guest)
		if errors.Is(err, sql.ErrNoRows) {
			return ErrModuleUnknown
		}
		return err
	})
	return guest, err
}

// RemoveUnusedModules removes each module that no agent and no snapshot uses, if more than moduleDays have passed since
// the module was last the current module of its guest.
func (s *Store) RemoveUnusedModules(ctx context.Context) error {
	unused := make(map[string]bool)
	err := s.db.DoUnqueued(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		return tx.Each(ctx, func(rows *sql.Rows) error {
			var digest string
			err := rows.Scan(&digest)
			unused[digest] = true
			return err
		}, "SELECT digest FROM modules WHERE day < $1", dayOf(tx.Now)-moduleDays)
	})
	for after := int64(0); err == nil && len(unused) > 0; {
		var records []*wasmstorev1.Record
		if records, after, err = s.recordsAfter(ctx, after); len(records) == 0 {
			break
		}
		for _, r := range records {
			delete(unused, r.GetModuleDigest())
			for _, k := range r.GetKept() {
				delete(unused, k.GetModuleDigest())
			}
		}
	}
	for digest := range unused {
		if err == nil {
			err = s.db.Do(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
				_, err := tx.ExecContext(ctx, "DELETE FROM modules WHERE digest = $1 AND day < $2", digest, dayOf(tx.Now)-moduleDays)
				return err
			})
		}
	}
	return err
}

// recordsAfter returns a page of agents in the order in which they were created, and the position of the last agent on
// the page. The caller passes the position of the last agent on the previous page, or 0 for the first page.
func (s *Store) recordsAfter(ctx context.Context, after int64) (out []*wasmstorev1.Record, last int64, err error) {
	err = s.db.DoUnqueued(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		out, last = nil, after
		return tx.Each(ctx, func(rows *sql.Rows) error {
			var text []byte
			r := new(wasmstorev1.Record)
			err := errors.Join(rows.Scan(&last, &text), proto.Unmarshal(text, r))
			out = append(out, r)
			return err
		}, "SELECT made, record FROM agents WHERE made > $1 ORDER BY made LIMIT $2", after, modulePage)
	})
	return out, last, err
}
