package pipeline_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/journal"
)

// A client repeats an approved call as soon as it has received the answer. The repeated call requests a new approval,
// because the outcome of the first call has already reached the approval service.
func TestApproval_RepeatedCallAfterTheAnswerNeedsAnother(t *testing.T) {
	t.Parallel()
	for range 100 {
		synctest.Test(t, func(t *testing.T) {
			w := newApprovalPipeline()
			w.hold = 0
			var ran atomic.Bool
			w.approvals.beforeComplete = func() { ran.Store(true) }
			w.approvals.answerRequest = func() (*approvalv1.RequestApprovalResponse, error) {
				switch {
				case ran.Load():
					return answerStates(approvalIn(pending))()
				case w.count("take") > 0: // the approval is still claimed
					a := approvalIn(approvalv1.ApprovalState_APPROVAL_STATE_CLAIMED)
					a.Code = commonv1.Code_CODE_APPROVAL_USED
					return answerStates(a)()
				default:
					return answerStates(approvalIn(approved))()
				}
			}
			p := w.pipeline(t)
			defer p.Wait(t.Context())
			if got := p.Do(t.Context(), w.newApprovalCall(t)); got.Refusal != nil {
				t.Fatalf("the approved call: %+v", got.Refusal)
			}
			if got := p.Do(t.Context(), w.newApprovalCall(t)); codeOf(got.Refusal) != commonv1.Code_CODE_APPROVAL_PENDING {
				t.Fatalf("the same call again: %+v", got.Refusal)
			}
		})
	}
}

// The approval service is slow to accept a call's outcome. The call's answer is delayed by at most 200 ms, and the
// service nevertheless receives the outcome.
func TestApproval_SlowServiceDelaysNoAnswer(t *testing.T) {
	t.Parallel()
	for slow, want := range map[time.Duration]time.Duration{0: 0, 150 * time.Millisecond: 150 * time.Millisecond, time.Minute: 200 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			w := newApprovalPipeline()
			w.approvals.answerRequest = answerStates(approvalIn(approved))
			w.approvals.beforeComplete = func() { time.Sleep(slow) }
			p, begin := w.pipeline(t), time.Now()
			got := p.Do(t.Context(), w.newApprovalCall(t))
			if took := time.Since(begin); got.Refusal != nil || took != want {
				t.Errorf("slow by %v: answered after %v, %+v", slow, took, got.Refusal)
			}
			p.Wait(t.Context())
			if len(w.approvals.outcomes) != 1 || w.count("settled") != 1 {
				t.Errorf("slow by %v: reported %v, %v", slow, w.approvals.outcomes, w.steps)
			}
		})
	}
}

// A claim is renewed while its call is running, and not after that.
func TestApproval_ClaimIsRenewedWhileItsCallRuns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const runs = 3 * time.Minute
		w := newApprovalPipeline()
		w.approvals.answerRequest = answerStates(approvalIn(approved))
		w.answer = func(_ context.Context, r upstream.Request) (upstream.Answer, error) {
			time.Sleep(runs)
			return result(r, `{"content":[]}`), nil
		}
		p, c := w.pipeline(t), w.newApprovalCall(t)
		c.Timeout = time.Hour
		if got := p.Do(t.Context(), c); got.Refusal != nil {
			t.Fatalf("%+v", got.Refusal)
		}
		p.Wait(t.Context())
		time.Sleep(runs)
		id := w.recordsOf(journal.KindIntent)[0].DecisionID
		for _, r := range w.approvals.renewed {
			if r.GetApprovalId() != "a-1" || r.GetClaimId() != id || r.GetHolder() != "gw" || r.GetLease().AsDuration() != time.Minute {
				t.Errorf("renewed %v", r)
			}
		}
		if n := len(w.approvals.renewed); n < 8 || n > 9 {
			t.Errorf("renewed %d times in %v", n, runs)
		}
	})
}
