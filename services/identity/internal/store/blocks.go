package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/sluice-mesh/sluice/services/internal/sqlstore"
)

// MaxBlocksOfTenant is the maximum number of blocks in one tenant.
const MaxBlocksOfTenant = 1000

var (
	// ErrBlocksFull means that too many callers of a tenant are blocked.
	ErrBlocksFull = errors.New("too many callers are blocked: unblock some of them, for example people whose accounts at the issuer were deleted")
	// ErrBlockUnknown means that there is no such block.
	ErrBlockUnknown = errors.New("this caller is not blocked")
)

// Block is a caller that is blocked. Either Subject or Client is set.
type Block struct {
	Tenant, Subject, Client string
	Created                 time.Time
	// CreatedByTenant and CreatedBy are the tenant and the subject of the operator who created the block.
	CreatedByTenant, CreatedBy string
	Reason                     string
}

// Block stores a block and returns the stored block. If a block for the same caller already exists, Block returns that
// block without a change. The returned set contains all blocks. The error can be [ErrBlocksFull] or
// [sqlstore.ErrUnavailable].
func (s *Store) Block(ctx context.Context, want Block) (stored Block, set TokenSet, err error) {
	err = s.db.Do(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		same, err := readBlocks(ctx, tx, "WHERE tenant = $1 AND subject = $2 AND client = $3", want.Tenant, want.Subject, want.Client)
		if err != nil {
			return err
		}
		if len(same) > 0 {
			stored = same[0]
			set, err = s.tokenSet(ctx, tx)
			return err
		}
		var count int
		if err := tx.QueryRowContext(ctx, "SELECT count(*) FROM identity_blocks WHERE tenant = $1", want.Tenant).Scan(&count); err != nil {
			return err
		}
		if count >= MaxBlocksOfTenant {
			return fmt.Errorf("the tenant %s has %d blocks: %w", want.Tenant, count, ErrBlocksFull)
		}
		stored = want
		stored.Created = tx.Now
		if _, err := tx.ExecContext(ctx, "INSERT INTO identity_blocks (tenant, subject, client, created, created_by_tenant, created_by, reason) VALUES ($1, $2, $3, $4, $5, $6, $7)",
			stored.Tenant, stored.Subject, stored.Client, sqlstore.Micros(stored.Created), stored.CreatedByTenant, stored.CreatedBy, stored.Reason); err != nil {
			return err
		}
		set, err = s.changedTokens(ctx, tx, want.Tenant)
		return err
	})
	return stored, set, err
}

// Unblock deletes a block. The returned set contains the remaining blocks. The error can be [ErrBlockUnknown] or
// [sqlstore.ErrUnavailable].
func (s *Store) Unblock(ctx context.Context, tenant, subject, client string) (set TokenSet, err error) {
	err = s.db.Do(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		result, err := tx.ExecContext(ctx, "DELETE FROM identity_blocks WHERE tenant = $1 AND subject = $2 AND client = $3", tenant, subject, client)
		if err != nil {
			return err
		}
		if n, err := result.RowsAffected(); err != nil || n == 0 {
			return errors.Join(err, ErrBlockUnknown)
		}
		set, err = s.changedTokens(ctx, tx, tenant)
		return err
	})
	return set, err
}

// Blocks returns all blocks, sorted by tenant, subject and client.
func (s *Store) Blocks(ctx context.Context) (all []Block, err error) {
	err = s.db.DoUnqueued(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		all, err = readBlocks(ctx, tx, "")
		return err
	})
	return all, err
}

func readBlocks(ctx context.Context, tx *sqlstore.Tx, where string, args ...any) (out []Block, err error) {
	err = tx.Each(ctx, func(rows *sql.Rows) error {
		var b Block
		var created int64
		if err := rows.Scan(&b.Tenant, &b.Subject, &b.Client, &created, &b.CreatedByTenant, &b.CreatedBy, &b.Reason); err != nil {
			return fmt.Errorf("read a block: %w", err)
		}
		b.Created = sqlstore.Time(created)
		out = append(out, b)
		return nil
	}, "SELECT tenant, subject, client, created, created_by_tenant, created_by, reason FROM identity_blocks "+where+" ORDER BY tenant, subject, client", args...)
	return out, err
}
