package pipeline_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/attempt"
)

func newConfirmPipeline() *testPipeline {
	w := newApprovalPipeline()
	waits := approvalIn(pending)
	waits.Terms = &policyv1.ApprovalTerms{Quorum: 1, SelfConfirm: true}
	w.approvals.answerRequest = answerStates(waits, approvalIn(approved))
	w.approvals.view = &approvalv1.View{Server: "pay", Name: "refund", Params: `{"sum":12.50}`}
	return w
}

func approvalWithTwoVotes() *approvalv1.Approval {
	waits := approvalIn(pending)
	waits.Terms = &policyv1.ApprovalTerms{Quorum: 2, SelfConfirm: true}
	return waits
}

// answerForm returns a function that gives the same answer to each form after the given delay, and appends the form's
// message to shown.
func answerForm(answer attempt.Confirmation, after time.Duration, shown *[]string) attempt.Confirm {
	return func(ctx context.Context, text string) attempt.Confirmation {
		*shown = append(*shown, text)
		select {
		case <-ctx.Done():
			return attempt.Unanswered
		case <-time.After(after):
			return answer
		}
	}
}

// The person who uses the agent answers a form. The answer counts if that person may decide on the approval. Approvers
// may decide on it while the person still sees the form.
func TestConfirm_AsksTheUser(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		answer    attempt.Confirmation
		after     time.Duration
		elsewhere *approvalv1.Approval // the decision of approvers after 3 s
		said      []approvalv1.Verdict
		code      commonv1.Code
		took      time.Duration
	}{
		"confirmed":               {attempt.Confirmed, time.Second, nil, []approvalv1.Verdict{approvalv1.Verdict_VERDICT_APPROVE}, 0, time.Second},
		"declined":                {attempt.Declined, time.Second, nil, []approvalv1.Verdict{approvalv1.Verdict_VERDICT_DENY}, commonv1.Code_CODE_APPROVAL_DENIED, time.Second},
		"closed":                  {attempt.Unanswered, time.Second, nil, nil, commonv1.Code_CODE_APPROVAL_PENDING, 45 * time.Second},
		"no answer in time":       {attempt.Confirmed, time.Hour, nil, nil, commonv1.Code_CODE_APPROVAL_PENDING, 45 * time.Second},
		"another person approves": {attempt.Confirmed, time.Hour, approvalIn(approved), nil, 0, 3 * time.Second},
		"another person denies":   {attempt.Confirmed, time.Hour, approvalIn(denied), nil, commonv1.Code_CODE_APPROVAL_DENIED, 3 * time.Second},
		"closed, and approved":    {attempt.Unanswered, time.Second, approvalIn(approved), nil, 0, 3 * time.Second},
		"no answer at all":        {attempt.Unanswered, time.Hour, nil, nil, commonv1.Code_CODE_APPROVAL_PENDING, 45 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newConfirmPipeline()
				if tt.elsewhere != nil {
					time.AfterFunc(3*time.Second, func() { w.approvals.updates <- tt.elsewhere })
				}
				var shown []string
				begin := time.Now()
				got := w.do(t, func(c *attempt.Call) { c.Confirm = answerForm(tt.answer, tt.after, &shown) })
				if took := time.Since(begin); took != tt.took || codeOf(got.Refusal) != tt.code || w.count("send") == 1 != (tt.code == 0) {
					t.Errorf("after %v: %v, %v", took, got.Refusal, w.steps)
				}
				if diff := cmp.Diff(tt.said, w.approvals.votes); diff != "" {
					t.Errorf("passed on (-want +got):\n%s", diff)
				}
				if len(shown) != 1 || !strings.Contains(shown[0], "pay refund") || !strings.Contains(shown[0], `{"sum":12.50}`) {
					t.Errorf("shown %q", shown)
				}
			})
		})
	}
}

// Case X8. The approval service does not allow another form to be shown. The gateway does not ask the person who uses
// the agent, and the call waits only for approvers.
func TestConfirm_FormsAreLimited(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newConfirmPipeline()
		w.approvals.limitReached = true
		var shown []string
		got := w.do(t, func(c *attempt.Call) { c.Confirm = answerForm(attempt.Declined, 0, &shown) })
		if codeOf(got.Refusal) != commonv1.Code_CODE_APPROVAL_PENDING || len(shown) != 0 || len(w.approvals.votes) != 0 {
			t.Errorf("%v, shown %q, passed on %v", got.Refusal, shown, w.approvals.votes)
		}
	})
}

// The user confirms the call shortly before the gateway stops holding it, and the approval service's watch does not
// report the confirmation. The call must run. It must not be refused on the grounds that a person must approve it.
func TestConfirm_LateConfirmationCounts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newConfirmPipeline()
		w.approvals.silent = true
		var shown []string
		got := w.do(t, func(c *attempt.Call) { c.Confirm = answerForm(attempt.Confirmed, 44*time.Second, &shown) })
		if got.Refusal != nil || w.count("send") != 1 {
			t.Errorf("%v, %v", got.Refusal, w.steps)
		}
	})
}

// Case A3. The form does not show the server's identity to the person who uses the agent. If the agent learned the
// identity, it could call the server directly.
func TestConfirm_FormHidesTheServersIdentity(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newConfirmPipeline()
		w.approvals.view.ServerIdentity = "http http://10.0.0.7/mcp?key=secret"
		var shown []string
		w.do(t, func(c *attempt.Call) { c.Confirm = answerForm(attempt.Confirmed, 0, &shown) })
		if len(shown) != 1 || strings.Contains(shown[0], "10.0.0.7") || !strings.Contains(shown[0], "pay refund") {
			t.Errorf("shown %q", shown)
		}
		if w.approvals.view.GetServerIdentity() == "" {
			t.Error("the approval service's answer was changed")
		}
	})
}

// The gateway does not show a form to the person who uses the agent if the form cannot contain the complete call, or if
// that person may not decide on the approval.
func TestConfirm_IsNotAskedWhenImpossible(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(w *testPipeline){
		"the terms do not say so":  func(w *testPipeline) { w.approvals.answerRequest = answerStates(approvalIn(pending)) },
		"there is nothing to show": func(w *testPipeline) { w.approvals.view = nil },
		"it has more than a part":  func(w *testPipeline) { w.approvals.view.NextOffset = 1 },
		"it is long":               func(w *testPipeline) { w.approvals.view.Params = strings.Repeat("x", 8<<10) },
		"four eyes decide": func(w *testPipeline) {
			w.approvals.answerRequest = answerStates(approvalWithTwoVotes(), approvalIn(approved))
		},
		"it is approved already": func(w *testPipeline) { w.approvals.answerRequest = answerStates(approvalIn(approved)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newConfirmPipeline()
				change(w)
				var shown []string
				w.do(t, func(c *attempt.Call) { c.Confirm = answerForm(attempt.Confirmed, 0, &shown) })
				if len(shown) != 0 || len(w.approvals.votes) != 0 {
					t.Errorf("shown %q, said %v", shown, w.approvals.votes)
				}
			})
		})
	}
}

// Case A3. The gateway cannot submit the user's answer to the approval service. A confirmed call does not run, and a
// declined call does not run even if approvers approve it.
func TestConfirm_LostVoteAllowsNothing(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		answer attempt.Confirmation
		code   commonv1.Code
	}{
		"confirmed":                        {attempt.Confirmed, commonv1.Code_CODE_APPROVAL_PENDING},
		"declined, while another approves": {attempt.Declined, commonv1.Code_CODE_APPROVAL_DENIED},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newConfirmPipeline()
				w.approvals.voteErr = errors.New("lost")
				if tt.answer == attempt.Declined {
					time.AfterFunc(3*time.Second, func() { w.approvals.updates <- approvalIn(approved) })
				}
				var shown []string
				got := w.do(t, func(c *attempt.Call) { c.Confirm = answerForm(tt.answer, time.Second, &shown) })
				if codeOf(got.Refusal) != tt.code || w.count("send") != 0 {
					t.Errorf("%v, %v", got.Refusal, w.steps)
				}
			})
		})
	}
}
