package store

import (
	"context"
	"database/sql"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/sluice-mesh/sluice/services/internal/sqlstore"
)

// Token is a token from an earlier version of the policy service, which stored tokens that operators created.
type Token struct {
	Name, Tenant, Subject, Agent, Owner string
	Groups                              []string
	// SHA256 is the SHA-256 digest of the token's secret.
	SHA256           [32]byte
	Created, Expires time.Time
	// CreatedByTenant and CreatedBy are the tenant and the subject of the operator who created the token.
	CreatedByTenant, CreatedBy string
	// LastUsed is the time when the token was last used. It is zero if the token was never used.
	LastUsed time.Time
	// Revoked is the time when the token was revoked, or zero. RevokedByTenant and RevokedBy are the tenant and the
	// subject of the operator who revoked it.
	Revoked                    time.Time
	RevokedByTenant, RevokedBy string
}

// Tokens returns all stored tokens, including revoked and expired ones, sorted by name.
func (s *Store) Tokens(ctx context.Context) (all []Token, err error) {
	err = s.db.DoUnqueued(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		all = nil
		return tx.Each(ctx, func(rows *sql.Rows) error {
			t, err := scanToken(rows)
			all = append(all, t)
			return err
		}, `SELECT name, sha256, tenant, subject, agent, owner, member_of, created, expires,
			created_by_tenant, created_by, last_used, revoked, revoked_by_tenant, revoked_by FROM tokens ORDER BY name`)
	})
	return all, err
}

// DeleteTokens deletes all stored tokens.
func (s *Store) DeleteTokens(ctx context.Context) error {
	return s.db.Do(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		_, err := tx.ExecContext(ctx, "DELETE FROM tokens")
		return err
	})
}

func scanToken(rows *sql.Rows) (t Token, err error) {
	var hash, groups string
	var created, expires, used, revoked int64
	if err := rows.Scan(&t.Name, &hash, &t.Tenant, &t.Subject, &t.Agent, &t.Owner, &groups, &created, &expires,
		&t.CreatedByTenant, &t.CreatedBy, &used, &revoked, &t.RevokedByTenant, &t.RevokedBy); err != nil {
		return Token{}, fmt.Errorf("read a token: %w", err)
	}
	raw, err := hex.DecodeString(hash)
	if err != nil || len(raw) != len(t.SHA256) {
		return Token{}, fmt.Errorf("read the token %s: its hash is damaged", t.Name)
	}
	t.SHA256 = [32]byte(raw)
	if err := json.Unmarshal([]byte(groups), &t.Groups); err != nil {
		return Token{}, fmt.Errorf("read the groups of the token %s: %w", t.Name, err)
	}
	t.Created, t.Expires, t.LastUsed, t.Revoked = sqlstore.Time(created), sqlstore.Time(expires), sqlstore.Time(used), sqlstore.Time(revoked)
	return t, nil
}
