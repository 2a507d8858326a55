package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sluice-mesh/sluice/services/internal/sqlstore"
)

const (
	// MaxSessionsOfPerson is the maximum number of sessions of one person. If a person with this number of sessions signs
	// in again, the oldest session ends.
	MaxSessionsOfPerson = 10
	// MaxSessions is the maximum number of sessions in all tenants together. maxSessionGroups is the maximum total size,
	// in bytes, of the groups and authentication context classes of all sessions. These limits exist because all tokens
	// are sent to each service in one message of at most 8 MiB.
	MaxSessions      = 5000
	maxSessionGroups = 2 << 20
	// maxSignIns is the maximum number of sessions that one person can start in signInPeriod.
	maxSignIns   = 20
	signInPeriod = time.Minute
	// maxEndedSessions is the maximum number of stored sessions of one person that have ended. endedSessionLife is how
	// long an ended session is stored.
	maxEndedSessions = 20
	endedSessionLife = 24 * time.Hour
)

var (
	// ErrSessionsFull means that there are too many sessions, or that the groups of all sessions together are too large.
	ErrSessionsFull = errors.New("there are too many sessions: try again later, or ask an operator to revoke some")
	// ErrSignInsTooOften means that a person has started too many sessions.
	ErrSignInsTooOften = errors.New("this person has signed in too often: wait a minute")
)

// CreateSession stores a session of a person, which expires after the given time. If the person already has
// [MaxSessionsOfPerson] sessions, the oldest session ends. The returned set contains all tokens. The error can be
// [ErrTokenExists], [ErrSignInsTooOften], [ErrSessionsFull] or [sqlstore.ErrUnavailable].
func (s *Store) CreateSession(ctx context.Context, want Token, life time.Duration) (created Token, set TokenSet, err error) {
	err = s.db.Do(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		created = want
		created.Created, created.Expires = tx.Now, tx.Now.Add(life)
		if err := makeRoomForSession(ctx, tx, &created); err != nil {
			return err
		}
		if err := insertToken(ctx, tx, &created); err != nil {
			return err
		}
		set, err = s.changedTokens(ctx, tx, want.Tenant)
		return err
	})
	return created, set, err
}

// makeRoomForSession ends the oldest sessions of a person who has too many sessions. It returns an error if the name of
// the new session is already used, if the person has signed in too often, or if there are too many sessions.
func makeRoomForSession(ctx context.Context, tx *sqlstore.Tx, want *Token) error {
	var same, all, size, recent int
	now := sqlstore.Micros(tx.Now)
	err := errors.Join(
		tx.QueryRowContext(ctx, "SELECT count(*) FROM identity_tokens WHERE name = $1", want.Name).Scan(&same),
		tx.QueryRowContext(ctx, "SELECT count(*), coalesce(sum(length(member_of) + length(acr)), 0) FROM identity_tokens WHERE issuer <> '' AND ended > $1", now).Scan(&all, &size),
		tx.QueryRowContext(ctx, "SELECT count(*) FROM identity_tokens WHERE issuer <> '' AND tenant = $1 AND subject = $2 AND created > $3",
			want.Tenant, want.Subject, sqlstore.Micros(tx.Now.Add(-signInPeriod))).Scan(&recent),
	)
	switch {
	case err != nil:
		return err
	case same > 0:
		return ErrTokenExists
	case recent >= maxSignIns:
		return fmt.Errorf("%s: %w", want.Subject, ErrSignInsTooOften)
	}
	own, err := readTokens(ctx, tx, "WHERE issuer <> '' AND tenant = $1 AND subject = $2 AND ended > $3 ORDER BY created, name", want.Tenant, want.Subject, now)
	if err != nil {
		return err
	}
	for len(own) >= MaxSessionsOfPerson {
		if err := revokeToken(ctx, tx, &own[0], &Revocation{OperatorTenant: want.Tenant, Operator: want.Subject}); err != nil {
			return err
		}
		own, all = own[1:], all-1
	}
	size += len(want.ACR)
	for _, group := range want.Groups {
		size += len(group)
	}
	if all >= MaxSessions || size > maxSessionGroups {
		return fmt.Errorf("the installation has %d sessions with %d KiB of groups: %w", all, size>>10, ErrSessionsFull)
	}
	_, err = tx.ExecContext(ctx, `DELETE FROM identity_tokens WHERE issuer <> '' AND tenant = $1 AND subject = $2 AND ended <= $3 AND name NOT IN
		(SELECT name FROM identity_tokens WHERE issuer <> '' AND tenant = $1 AND subject = $2 AND ended <= $3 ORDER BY ended DESC, name LIMIT $4)`,
		want.Tenant, want.Subject, now, maxEndedSessions)
	return err
}
