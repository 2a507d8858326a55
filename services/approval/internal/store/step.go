package store

import (
	"context"
	"database/sql"
	"time"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	"github.com/sluice-mesh/sluice/services/approval/internal/lifecycle"
)

// Changes are what a transaction changed, as far as it is counted.
type Changes struct {
	Steps []Step
	// GivenUp is how many notices it gave up.
	GivenUp int64
}

// Step is a move that a transaction made, as far as it is counted.
type Step struct {
	// From and To are the same where a vote or the terms alone changed.
	From, To approvalv1.ApprovalState
	// Time is when, and Asked when people were asked before, the last time that they
	// were.
	Time, Asked time.Time
	// Granted says that a grant covers the call, so that nobody was asked.
	Granted bool
}

func stepOf(r *lifecycle.Record, m *approvalv1.Move) Step {
	return Step{From: m.GetFrom(), To: m.GetTo(), Time: m.GetTime().AsTime(), Asked: r.Asked(), Granted: r.Approval.GetGrantedBy() != ""}
}

// CountOpen counts the approvals that have not ended, by state.
func (t *Tx) CountOpen(ctx context.Context) (map[approvalv1.ApprovalState]int64, error) {
	out := make(map[approvalv1.ApprovalState]int64)
	err := t.inner.Each(ctx, func(rows *sql.Rows) error {
		var state approvalv1.ApprovalState
		var n int64
		err := rows.Scan(&state, &n)
		out[state] = n
		return err
	}, "SELECT state, count(*) FROM approvals WHERE ended = 0 GROUP BY state")
	return out, err
}
