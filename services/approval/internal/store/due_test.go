package store_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/approval/internal/lifecycle"
	"github.com/sluice-mesh/sluice/services/approval/internal/store"
)

// Prune does not delete an ended approval while its grant is live.
func TestPrune_KeepsALiveGrant(t *testing.T) {
	forEachStore(t, func(t *testing.T, at storeKind) {
		s := at.open(t)
		openApproval(t, s, openRequest("a", func(q *lifecycle.OpenRequest) {
			q.Decision.Approval.Grant = &policyv1.Grant{Calls: 2, Within: durationpb.New(time.Hour)}
		}))
		approve(t, s, "a", "ben")
		do(t, s, func(ctx context.Context, tx *store.Tx) error {
			r, err := tx.Get(ctx, "acme", "a")
			if err != nil {
				return err
			}
			r.CancelOutdated(tx.Now)
			return tx.Save(ctx, r)
		})
		for _, tt := range []struct {
			before time.Duration
			want   int64
		}{{30 * time.Minute, 0}, {2 * time.Hour, 1}} {
			do(t, s, func(ctx context.Context, tx *store.Tx) error {
				n, err := tx.Prune(ctx, tx.Now.Add(tt.before))
				if n != tt.want {
					t.Errorf("deleted %d approvals that ended before %v from now, want %d", n, tt.before, tt.want)
				}
				return err
			})
		}
	})
}

// The number of approvals that expire at the same time is larger than the number that one transaction handles. A
// transaction that reads one of these approvals finds that it has expired.
func TestDo_ExpiresMoreApprovalsThanOneBatch(t *testing.T) {
	forEachStore(t, func(t *testing.T, at storeKind) {
		s := at.open(t)
		const due, last = 9, "a8"
		for n := range due {
			id := fmt.Sprintf("a%d", n)
			openApproval(t, s, openRequest(id, func(q *lifecycle.OpenRequest) { q.Times.Execute = 2 * time.Second }))
			approve(t, s, id, "ben")
		}
		<-time.After(2 * time.Second)
		do(t, s, func(ctx context.Context, tx *store.Tx) error {
			r, err := tx.Get(ctx, "acme", last)
			if err != nil {
				return err
			}
			refused, err := r.Claim(claimRequest("c", 1), tx.Now)
			if refused == nil || lifecycle.StateName(r.Approval.GetState()) != "expired" {
				t.Errorf("claimed after the time to execute: %v", r.Approval)
			}
			return err
		})
	})
}
