package store

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	"github.com/sluice-mesh/sluice/services/approval/internal/lifecycle"
	"github.com/sluice-mesh/sluice/services/internal/sqlstore"
)

// Kinds of notices. All others are the names of the states that approvals reached.
const (
	// Pending means that an approval waits for people, or that they begin again.
	Pending = "pending"
	// Escalated means that it still waits when a share of the time is over.
	Escalated = "escalated"
)

// Channel is a way of telling people, as far as the store makes notices for it.
type Channel struct {
	// Name names it for as long as notices wait: letters, digits and hyphens.
	Name string
	// Tenant is the one whose approvals it tells of; empty for all.
	Tenant string
	// After is 0, or the share of the time to decide, below 1, after which it tells
	// once that an approval is still pending, and of nothing else.
	After float64
}

// Notice is something to tell people on one channel.
type Notice struct {
	// ID is the same at every attempt.
	ID, Channel, Kind string
	// Approval is the approval as it was when there was something to tell.
	Approval *approvalv1.Approval
	// Due is when it was to be sent first.
	Due time.Time
	// Attempt counts from 1.
	Attempt int64
	// Receipts are those of this approval's earlier notices on the channel, oldest
	// first.
	Receipts []string

	sequence int64
}

// Ending is how a notice ended.
type Ending int64

const (
	// Sent means that the channel took it.
	Sent Ending = iota + 1
	// Moot means that there was nothing to tell any more.
	Moot
	// GivenUp means that the channel did not take it for too long.
	GivenUp
)

// news is the kind of what people are to be told of a record's new moves; empty
// where they are told nothing. Of several moves the newest counts.
func news(r *lifecycle.Record) string {
	for _, m := range slices.Backward(r.Moves) {
		state := lifecycle.StateName(m.GetTo())
		switch {
		case state == Pending && m.GetVote() == nil:
			return Pending
		case m.GetTo() != m.GetFrom() && r.Ended(),
			m.GetTo() == approvalv1.ApprovalState_APPROVAL_STATE_APPROVED && m.GetFrom() == approvalv1.ApprovalState_APPROVAL_STATE_PENDING:
			return state
		}
	}
	return ""
}

// saveNotices makes the notices of a record's new moves; number is the newest's.
func (t *Tx) saveNotices(ctx context.Context, r *lifecycle.Record, number int64) error {
	kind := news(r)
	if kind == "" || len(t.channels) == 0 {
		return nil
	}
	a := r.Approval
	about, err := proto.Marshal(a)
	if err != nil {
		return err
	}
	for _, c := range t.channels {
		due, kind := t.Now, kind
		if c.After > 0 {
			if kind != Pending {
				continue
			}
			kind = Escalated
			due = due.Add(time.Duration(c.After * float64(a.GetDecideBefore().AsTime().Sub(t.Now))))
		}
		if c.Tenant != "" && c.Tenant != a.GetRequester().GetTenant() {
			continue
		}
		_, err := t.inner.ExecContext(ctx, `INSERT INTO notices (id, sequence, approval, version, kind, channel, state, attempts, due, next, ended, receipt, about)
			VALUES ($1, $2, $3, $4, $5, $6, 0, 0, $7, $7, 0, '', $8)`,
			fmt.Sprintf("%s-%d-%s", a.GetId(), a.GetVersion(), c.Name), number, a.GetId(), a.GetVersion(), kind, c.Name, sqlstore.Micros(due), about)
		if err != nil {
			return fmt.Errorf("write the notices of approval %s: %w", a.GetId(), err)
		}
	}
	return nil
}

// TakeNotices gives the caller the notices of a channel that are due, which nobody
// else gets until the lease is over. Of each approval it gives the oldest that
// waits, so that a channel tells of each in the order of its moves.
func (t *Tx) TakeNotices(ctx context.Context, channel string, lease time.Duration, most int) ([]*Notice, error) {
	var out []*Notice
	err := t.inner.Each(ctx, func(rows *sql.Rows) error {
		var due int64
		var about []byte
		n := &Notice{Approval: new(approvalv1.Approval)}
		err := rows.Scan(&n.ID, &n.Channel, &n.Kind, &due, &n.Attempt, &n.sequence, &about)
		n.Due = sqlstore.Time(due)
		out = append(out, n)
		return errors.Join(err, proto.Unmarshal(about, n.Approval))
	}, `UPDATE notices SET attempts = attempts + 1, next = $1 WHERE state = 0 AND id IN (
			SELECT id FROM notices AS n WHERE channel = $2 AND state = 0 AND next <= $3 AND NOT EXISTS (
				SELECT 1 FROM notices AS o WHERE o.approval = n.approval AND o.channel = n.channel AND o.sequence < n.sequence AND o.state = 0)
			ORDER BY next, sequence LIMIT $4)
		RETURNING id, channel, kind, due, attempts, sequence, about`,
		sqlstore.Micros(t.Now.Add(lease)), channel, sqlstore.Micros(t.Now), most)
	if err != nil {
		return nil, fmt.Errorf("take notices: %w", err)
	}
	slices.SortFunc(out, func(a, b *Notice) int { return cmp.Compare(a.sequence, b.sequence) })
	for _, n := range out {
		if n.Receipts, err = t.receipts(ctx, n); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (t *Tx) receipts(ctx context.Context, n *Notice) (out []string, err error) {
	err = t.inner.Each(ctx, func(rows *sql.Rows) error {
		var receipt string
		err := rows.Scan(&receipt)
		out = append(out, receipt)
		return err
	}, "SELECT receipt FROM notices WHERE approval = $1 AND channel = $2 AND receipt <> '' ORDER BY sequence", n.Approval.GetId(), n.Channel)
	return out, err
}

// EndNotice ends a notice that its taker still has; what its channel remembers it by
// may be empty. Who took too long changes nothing.
func (t *Tx) EndNotice(ctx context.Context, n *Notice, how Ending, receipt string) error {
	done, err := t.inner.ExecContext(ctx, "UPDATE notices SET state = $1, ended = $2, receipt = $3 WHERE id = $4 AND state = 0 AND attempts = $5",
		int64(how), sqlstore.Micros(t.Now), receipt, n.ID, n.Attempt)
	if err != nil || how != GivenUp {
		return err
	}
	ended, err := done.RowsAffected()
	t.changes.GivenUp += ended
	return err
}

// RetryNotice gives a notice back that its taker still has, for later.
func (t *Tx) RetryNotice(ctx context.Context, n *Notice, pause time.Duration) error {
	_, err := t.inner.ExecContext(ctx, "UPDATE notices SET next = $1 WHERE id = $2 AND state = 0 AND attempts = $3",
		sqlstore.Micros(t.Now.Add(pause)), n.ID, n.Attempt)
	return err
}

// CountNotices counts the notices of a channel that ended in a way and are kept.
func (t *Tx) CountNotices(ctx context.Context, channel string, how Ending) (n int, err error) {
	err = t.inner.QueryRowContext(ctx, "SELECT count(*) FROM notices WHERE channel = $1 AND state = $2", channel, int64(how)).Scan(&n)
	return n, err
}

// ForgetNotices removes the notices that ended longer ago than a time, and those that
// wait as long because nobody serves their channel any more.
func (t *Tx) ForgetNotices(ctx context.Context, older time.Duration) error {
	_, err := t.inner.ExecContext(ctx, "DELETE FROM notices WHERE ended > 0 AND ended <= $1 OR state = 0 AND due <= $1", sqlstore.Micros(t.Now.Add(-older)))
	return err
}
