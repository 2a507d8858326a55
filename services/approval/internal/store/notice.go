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

// These are kinds of notices. The kind of every other notice is the name of the approval's new state.
const (
	// Pending means that approvers are asked, for the first time or again.
	Pending = "pending"
	// Escalated means that the approval is still pending after the channel's fraction of the time to decide.
	Escalated = "escalated"
)

// Channel describes a notice channel to the store.
type Channel struct {
	// Name identifies the channel in stored notices. It consists of letters, digits and hyphens.
	Name string
	// Tenant limits the channel to approvals of one tenant. If it is empty, the channel is for all tenants.
	Tenant string
	// After is a fraction of the time that people have to decide. It must be at least 0 and below 1. If it is 0, the
	// channel receives all notices. Otherwise the channel receives one notice, after this fraction of the time, if the
	// approval is still pending.
	After float64
}

// Notice is a message to people on one channel.
type Notice struct {
	// ID is the same in every attempt to send the notice. Channel is the name of the channel.
	ID, Channel, Kind string
	// Approval is the approval after the transition that the notice reports.
	Approval *approvalv1.Approval
	// Due is the time of the first attempt to send the notice.
	Due time.Time
	// Attempt is the number of the current attempt, starting at 1.
	Attempt int64
	// Receipts are the receipts of earlier notices of this approval on the channel, oldest first.
	Receipts []string

	sequence int64
}

// NoticeEnd describes how a notice ended.
type NoticeEnd int64

const (
	// Sent means that the channel accepted the notice.
	Sent NoticeEnd = iota + 1
	// Obsolete means that the notice was not sent because it was no longer relevant.
	Obsolete
	// GivenUp means that every attempt to send the notice failed, and that the channel has stopped retrying.
	GivenUp
)

// noticeKind returns the kind of notice for a record's new transitions, or "" if they need no notice. The newest
// transition that needs a notice determines the kind.
func noticeKind(r *lifecycle.Record) string {
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

// saveNotices writes the notices for a record's new transitions. number is the number of the newest transition.
func (t *Tx) saveNotices(ctx context.Context, r *lifecycle.Record, number int64) error {
	kind := noticeKind(r)
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

// LeaseNotices leases at most limit due notices of a channel to the caller and returns them. Other callers don't
// receive these notices until the lease expires. LeaseNotices returns only the oldest unsent notice of each approval,
// so that the notices of an approval are sent in the order of its transitions.
func (t *Tx) LeaseNotices(ctx context.Context, channel string, lease time.Duration, limit int) ([]*Notice, error) {
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
		sqlstore.Micros(t.Now.Add(lease)), channel, sqlstore.Micros(t.Now), limit)
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

// EndNotice ends a notice that the caller has leased. receipt identifies the sent notice on its channel, and may be
// empty. If another attempt to send the notice has already begun, EndNotice changes nothing.
func (t *Tx) EndNotice(ctx context.Context, n *Notice, how NoticeEnd, receipt string) error {
	done, err := t.inner.ExecContext(ctx, "UPDATE notices SET state = $1, ended = $2, receipt = $3 WHERE id = $4 AND state = 0 AND attempts = $5",
		int64(how), sqlstore.Micros(t.Now), receipt, n.ID, n.Attempt)
	if err != nil || how != GivenUp {
		return err
	}
	ended, err := done.RowsAffected()
	t.changes.GivenUp += ended
	return err
}

// RetryNotice ends the caller's lease of a notice. The notice is due again after the given pause. If another attempt to
// send the notice has already begun, RetryNotice changes nothing.
func (t *Tx) RetryNotice(ctx context.Context, n *Notice, pause time.Duration) error {
	_, err := t.inner.ExecContext(ctx, "UPDATE notices SET next = $1 WHERE id = $2 AND state = 0 AND attempts = $3",
		sqlstore.Micros(t.Now.Add(pause)), n.ID, n.Attempt)
	return err
}

// CountNotices counts the stored notices of a channel that ended in a given way.
func (t *Tx) CountNotices(ctx context.Context, channel string, how NoticeEnd) (n int, err error) {
	err = t.inner.QueryRowContext(ctx, "SELECT count(*) FROM notices WHERE channel = $1 AND state = $2", channel, int64(how)).Scan(&n)
	return n, err
}

// DeleteOldNotices deletes notices that ended at least age ago. It also deletes unsent notices that are at least as
// old, because their channel is no longer configured.
func (t *Tx) DeleteOldNotices(ctx context.Context, age time.Duration) error {
	_, err := t.inner.ExecContext(ctx, "DELETE FROM notices WHERE ended > 0 AND ended <= $1 OR state = 0 AND due <= $1", sqlstore.Micros(t.Now.Add(-age)))
	return err
}
