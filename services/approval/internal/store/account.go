package store

import (
	"context"
	"database/sql"
	"errors"
	"time"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/internal/principal"
	"github.com/sluice-mesh/sluice/services/internal/quota"
	"github.com/sluice-mesh/sluice/services/internal/sqlstore"
)

// An Account is a principal or a person whose pending calls and approval requests are limited. A caller can have
// several accounts. The caller's calls and requests count against the limits of all of them.
type Account struct {
	principal.Key

	// Person is true if the account is a person. The caller, or a principal in the caller's delegation chain, works for
	// this person.
	Person bool
	// Digest identifies the account in the tables.
	Digest []byte
	// Factor is the account's limit as a multiple of the limit of one principal.
	Factor int
}

// Accounts returns the accounts of a caller. The caller and each principal in the caller's delegation chain are
// accounts. Their limit is the limit of one principal. Each person for whom one of them works is also an account. Its
// limit is [quota.PersonFactor] times the limit of one principal, and all principals that work for the person share it.
func Accounts(p *identityv1.Principal) []Account {
	out := []Account{{Key: principal.Of(p), Digest: PrincipalDigest(p), Factor: 1}}
	for _, of := range p.GetChain() {
		out = append(out, Account{Key: principal.Of(of), Digest: PrincipalDigest(of), Factor: 1})
	}
	accounts := principal.AccountsOf(p)
	for _, a := range accounts.All() {
		if a.Person {
			out = append(out, Account{Key: a.Key, Person: true, Digest: hash("person", a.Tenant, a.Subject, ""), Factor: quota.PersonFactor})
		}
	}
	return out
}

// RetryAfter returns the time that a caller must wait before it may request an approval, or 0 if it may request one
// now. The caller must wait if one of its accounts has reached its limit in the most recent window. limit is the limit
// of one principal. It must be at least 1.
func (t *Tx) RetryAfter(ctx context.Context, p *identityv1.Principal, limit int, window time.Duration) (left time.Duration, err error) {
	for _, a := range Accounts(p) {
		var at int64
		err := t.inner.QueryRowContext(ctx, "SELECT at FROM asked WHERE who = $1 AND at > $2 ORDER BY at DESC LIMIT 1 OFFSET $3",
			a.Digest, sqlstore.Micros(t.Now.Add(-window)), limit*a.Factor-1).Scan(&at)
		if errors.Is(err, sql.ErrNoRows) {
			continue
		}
		if err != nil {
			return 0, err
		}
		left = max(left, sqlstore.Time(at).Add(window).Sub(t.Now))
	}
	return left, nil
}

// CountRequest counts an approval request that causes no transition. [Tx.Save] counts the requests whose transition
// asks approvers for a decision.
func (t *Tx) CountRequest(ctx context.Context, p *identityv1.Principal) error {
	number, err := t.nextMoveNumber(ctx)
	if err != nil {
		return err
	}
	return t.saveRequestCount(ctx, number, p)
}

func (t *Tx) saveRequestCount(ctx context.Context, number int64, p *identityv1.Principal) error {
	for _, a := range Accounts(p) {
		_, err := t.inner.ExecContext(ctx, "INSERT INTO asked (who, at, number) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING", a.Digest, sqlstore.Micros(t.Now), number)
		if err != nil {
			return err
		}
	}
	return nil
}

// DeleteRequestCounts deletes the counts of requests that were made at or before the given time.
func (t *Tx) DeleteRequestCounts(ctx context.Context, before time.Time) error {
	_, err := t.inner.ExecContext(ctx, "DELETE FROM asked WHERE at <= $1", sqlstore.Micros(before))
	return err
}
