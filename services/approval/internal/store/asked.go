package store

import (
	"context"
	"database/sql"
	"errors"
	"time"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/internal/sqlstore"
)

// behind are a principal and everybody in its chain, as questions are counted.
func behind(p *identityv1.Principal) [][]byte {
	out := [][]byte{Who(p)}
	for _, of := range p.GetChain() {
		out = append(out, Who(of))
	}
	return out
}

// Room is for how long a principal, or somebody in its chain, may ask nobody any more
// who may ask most times, 1 or more, in any stretch of window; 0 where there is room.
func (t *Tx) Room(ctx context.Context, p *identityv1.Principal, most int, window time.Duration) (left time.Duration, err error) {
	for _, who := range behind(p) {
		var at int64
		err := t.inner.QueryRowContext(ctx, "SELECT at FROM asked WHERE who = $1 AND at > $2 ORDER BY at DESC LIMIT 1 OFFSET $3",
			who, sqlstore.Micros(t.Now.Add(-window)), most-1).Scan(&at)
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

// Ask counts a question of a principal's that moves no approval. One that does
// [Tx.Save] counts.
func (t *Tx) Ask(ctx context.Context, p *identityv1.Principal) error {
	number, err := t.next(ctx)
	if err != nil {
		return err
	}
	return t.saveAsked(ctx, number, p)
}

// saveAsked counts a question, which has the number of its move.
func (t *Tx) saveAsked(ctx context.Context, number int64, p *identityv1.Principal) error {
	for _, who := range behind(p) {
		_, err := t.inner.ExecContext(ctx, "INSERT INTO asked (who, at, number) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING", who, sqlstore.Micros(t.Now), number)
		if err != nil {
			return err
		}
	}
	return nil
}

// ForgetAsked forgets the questions from before a time.
func (t *Tx) ForgetAsked(ctx context.Context, before time.Time) error {
	_, err := t.inner.ExecContext(ctx, "DELETE FROM asked WHERE at <= $1", sqlstore.Micros(before))
	return err
}
