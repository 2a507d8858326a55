package store

import (
	"context"
	"database/sql"
	"time"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	"github.com/sluice-mesh/sluice/services/approval/internal/lifecycle"
)

// Changes contains the changes that one transaction made. It is used for metrics.
type Changes struct {
	Transitions []Transition
	// GivenUp is the number of notices that the transaction ended with the result [GivenUp].
	GivenUp int64
}

// Transition describes a transition that a transaction made. It is used for metrics.
type Transition struct {
	// From and To are the same if only a vote or the terms changed.
	From, To approvalv1.ApprovalState
	// Time is the time of the transition. LastAsked is the last time before the transition at which approvers were
	// asked.
	Time, LastAsked time.Time
	// Granted is true if a grant covers the call. Approvers are not asked about such a call.
	Granted bool
}

func newTransition(r *lifecycle.Record, m *approvalv1.Move) Transition {
	return Transition{From: m.GetFrom(), To: m.GetTo(), Time: m.GetTime().AsTime(), LastAsked: r.LastAsked(), Granted: r.Approval.GetGrantedBy() != ""}
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
