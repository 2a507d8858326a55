package store

import (
	"context"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
)

// PendingApprovals describes the pending approvals of all tenants.
type PendingApprovals struct {
	// Total is the number of pending approvals. New is the number of pending approvals that were opened after a given
	// transition.
	Total, New int
	// Newest is the id of the approval that was opened last. Opened is the number of the transition that opened this
	// approval.
	Newest string
	Opened int64
}

// PendingApprovals counts the pending approvals. after is the number of a transition. The field New of the result
// counts the approvals that were opened after this transition.
func (t *Tx) PendingApprovals(ctx context.Context, after int64) (p PendingApprovals, err error) {
	const pending = int64(approvalv1.ApprovalState_APPROVAL_STATE_PENDING)
	const those = "FROM approvals WHERE ended = 0 AND state = $1 "
	err = t.inner.QueryRowContext(ctx, "SELECT count(*), coalesce(sum(CASE WHEN opened > $2 THEN 1 ELSE 0 END), 0) "+those, pending, after).Scan(&p.Total, &p.New)
	if err != nil || p.New == 0 {
		return p, err
	}
	err = t.inner.QueryRowContext(ctx, "SELECT id, opened "+those+"ORDER BY opened DESC LIMIT 1", pending).Scan(&p.Newest, &p.Opened)
	return p, err
}
