package pipeline_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/gatewaytest"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/journal"
)

func stopped() *policyv1.Decision {
	return &policyv1.Decision{
		Effect: policyv1.Effect_EFFECT_DENY, Code: commonv1.Code_CODE_STOPPED, PolicyRevision: "later",
		Message: "it loops. An operator has stopped all calls of agent dev.",
	}
}

// beginAfter makes connecting to the server take the given time. At the beginning of that time, the function change is
// called.
func (w *testPipeline) beginAfter(wait time.Duration, change func()) {
	w.answer = func(_ context.Context, r upstream.Request) (upstream.Answer, error) {
		change()
		time.Sleep(wait) // in the fake time of synctest
		if err := r.MayBegin(); err != nil {
			return upstream.Answer{}, err
		}
		w.step("begin")
		return result(r, `{"content":[]}`), nil
	}
}

// The policy allows a call, and connecting to the server takes some time. Meanwhile, an operator stops the calls. A
// call whose decision is more than a second old does not start until the policy service has evaluated it again.
func TestDo_CallBeginsOnlyByAValidDecision(t *testing.T) {
	t.Parallel()
	away := func(w *testPipeline) {
		w.decide = func(context.Context, *policyv1.DecideCallRequest) (*policyv1.DecideCallResponse, error) {
			return nil, errors.New("away")
		}
	}
	slow := func(w *testPipeline) {
		w.decide = func(context.Context, *policyv1.DecideCallRequest) (*policyv1.DecideCallResponse, error) {
			time.Sleep(1500 * time.Millisecond)
			return &policyv1.DecideCallResponse{Decision: allow()}, nil
		}
	}
	for name, tt := range map[string]struct {
		wait    time.Duration
		change  func(*testPipeline)
		code    commonv1.Code
		decided int
	}{
		"at once, and the calls are stopped":       {900 * time.Millisecond, func(w *testPipeline) { w.decide = decides(stopped()) }, 0, 1},
		"late, and the calls are stopped":          {time.Second, func(w *testPipeline) { w.decide = decides(stopped()) }, commonv1.Code_CODE_STOPPED, 2},
		"late, and nothing has changed":            {time.Minute / 2, func(*testPipeline) {}, 0, 2},
		"late, and a rule denies the call":         {time.Second, func(w *testPipeline) { w.decide = decides(denial()) }, commonv1.Code_CODE_DENIED_BY_RULE, 2},
		"late, and the call needs an approval":     {time.Second, func(w *testPipeline) { w.decide = newApprovalPipeline().decide }, commonv1.Code_CODE_POLICY_UNAVAILABLE, 2},
		"late, and policy is unavailable":          {time.Second, away, commonv1.Code_CODE_POLICY_UNAVAILABLE, 2},
		"late, and the second decision comes late": {time.Second, slow, commonv1.Code_CODE_POLICY_UNAVAILABLE, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newTestPipeline()
				w.decide = decides(limited(policyv1.OnLimiterError_ON_LIMITER_ERROR_DENY))
				w.beginAfter(tt.wait, func() { tt.change(w) })
				p := w.pipeline(t)
				got := p.Do(t.Context(), w.call(t))
				p.Wait(t.Context())
				outcome := w.recordsOf(journal.KindOutcome)[0]
				if codeOf(got.Refusal) != tt.code || (w.count("begin") == 1) != (tt.code == 0) || w.count("decide") != tt.decided {
					t.Fatalf("%+v, %v", got.Refusal, w.steps)
				}
				if tt.code == 0 {
					return
				}
				if outcome.ResultClass != journal.ResultNeverSent || outcome.Message != got.Refusal.Text() || got.Refusal.ID != outcome.DecisionID {
					t.Errorf("the record %+v of %+v", outcome, got.Refusal)
				}
				if len(w.settled) != 1 {
					t.Errorf("the limits of a call that did not begin were settled %d times", len(w.settled))
				}
			})
		})
	}
}

// While a call waits for a connection to its server, the caller's token is revoked. The call does not start, and its
// limits are settled.
func TestDo_CallDoesNotBeginWhenItsTokenWasRevoked(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTestPipeline()
		w.decide = decides(limited(policyv1.OnLimiterError_ON_LIMITER_ERROR_DENY))
		var ended error
		w.beginAfter(time.Millisecond, func() { ended = authn.ErrTokenRevoked })
		p, call := w.pipeline(t), w.call(t)
		call.Credential = gatewaytest.Credential(func() error { return ended })
		got := p.Do(t.Context(), call)
		p.Wait(t.Context())
		if codeOf(got.Refusal) != commonv1.Code_CODE_UNAUTHENTICATED || !strings.Contains(got.Refusal.Text(), "was revoked") || w.count("begin") != 0 || len(w.settled) != 1 {
			t.Errorf("%+v, %v", got.Refusal, w.steps)
		}
		if outcome := w.recordsOf(journal.KindOutcome)[0]; outcome.ResultClass != journal.ResultNeverSent || outcome.Message != got.Refusal.Text() {
			t.Errorf("the record %+v of %+v", outcome, got.Refusal)
		}
	})
}

// A call without a credential is not sent, although the policy allows it.
func TestDo_CallWithoutCredentialDoesNotBegin(t *testing.T) {
	t.Parallel()
	w := newTestPipeline()
	w.beginAfter(0, func() {})
	call := w.call(t)
	call.Credential = nil
	got := w.pipeline(t).Do(t.Context(), call)
	if codeOf(got.Refusal) != commonv1.Code_CODE_POLICY_UNAVAILABLE || w.count("begin") != 0 {
		t.Errorf("%+v, %v", got.Refusal, w.steps)
	}
}

func denial() *policyv1.Decision {
	return &policyv1.Decision{Effect: policyv1.Effect_EFFECT_DENY, Code: commonv1.Code_CODE_DENIED_BY_RULE, Message: "not now"}
}

func TestDo_StoppedCallNamesTheReason(t *testing.T) {
	t.Parallel()
	w := newTestPipeline()
	w.decide = decides(stopped())
	got := w.pipeline(t).Do(t.Context(), w.call(t))
	want := "Stopped by an operator: it loops. An operator has stopped all calls of agent dev."
	if codeOf(got.Refusal) != commonv1.Code_CODE_STOPPED || got.Refusal.Text() != want || got.Refusal.Retryable() || w.count("send") != 0 {
		t.Errorf("%+v, %v", got.Refusal, w.steps)
	}
	if rec := w.recordsOf(journal.KindRefusal)[0]; rec.Code != "stopped" || rec.Message != want {
		t.Errorf("%+v", rec)
	}
}

// scopeMissing returns the decision on a call that needs more scopes.
func scopeMissing() *policyv1.Decision {
	return &policyv1.Decision{
		Effect: policyv1.Effect_EFFECT_DENY, Code: commonv1.Code_CODE_SCOPE_MISSING, PolicyRevision: "later",
		Message: "the call needs the OAuth scopes a and b", NeededScopes: []string{"a", "b"}, MissingScopes: []string{"b"},
	}
}

// Approvers have approved an agent's call. Before the call runs, an operator stops the agent, or the agent's new token
// lacks a scope. The call is refused. The approval is neither claimed nor cancelled, so that the call can run after the
// operator has allowed the agent's calls again, or the agent has another token.
func TestDo_ApprovalStaysValid(t *testing.T) {
	t.Parallel()
	for name, denied := range map[string]*policyv1.Decision{"stopped": stopped(), "a scope is missing": scopeMissing()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testApprovalStaysValid(t, denied)
		})
	}
}

func testApprovalStaysValid(t *testing.T, denied *policyv1.Decision) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newApprovalPipeline()
		asks := w.decide
		w.hold = 0
		w.approvals.answerRequest = answerStates(approvalUntil(pending))
		p := w.pipeline(t)
		if got := p.Do(t.Context(), w.newApprovalCall(t)); codeOf(got.Refusal) != commonv1.Code_CODE_APPROVAL_PENDING {
			t.Fatalf("no ticket: %+v", got.Refusal)
		}
		w.approvals.answerRequest, w.decide = answerStates(approvalUntil(approved)), decides(denied)
		refuses := func(when string) {
			t.Helper()
			w.steps = nil
			if got := p.Do(t.Context(), w.newApprovalCall(t)); codeOf(got.Refusal) != denied.GetCode() || (got.Refusal.Scopes != nil) != (denied.GetMissingScopes() != nil) {
				t.Fatalf("%s: %+v", when, got.Refusal)
			}
			for _, step := range []string{"claim", "take", "cancel", "send"} {
				if slices.Contains(w.steps, step) {
					t.Errorf("%s: %v", when, w.steps)
				}
			}
		}
		refuses("denied before the call is repeated")
		n := 0
		w.decide = func(ctx context.Context, r *policyv1.DecideCallRequest) (*policyv1.DecideCallResponse, error) {
			if n++; n < 3 {
				return asks(ctx, r)
			}
			return decides(denied)(ctx, r) // when the approval is to be claimed
		}
		refuses("denied before the claim")
		w.decide = asks
		if got := p.Do(t.Context(), w.newApprovalCall(t)); got.Refusal != nil {
			t.Errorf("after the policy allows the call again: %+v", got.Refusal)
		}
		p.Wait(t.Context())
	})
}

// While a call whose approval is claimed waits for its server, an operator stops the agent. The claim is released.
func TestDo_StopReleasesTheClaimOfACallThatHasNotBegun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newApprovalPipeline()
		w.approvals.answerRequest = answerStates(approvalIn(approved))
		w.beginAfter(2*time.Second, func() { w.decide = decides(stopped()) })
		got := w.do(t)
		if codeOf(got.Refusal) != commonv1.Code_CODE_STOPPED || w.count("begin") != 0 || w.count("release") != 1 {
			t.Errorf("%+v, %v", got.Refusal, w.steps)
		}
		if outcome := w.recordsOf(journal.KindOutcome)[0]; outcome.ResultClass != journal.ResultNeverSent || !strings.HasPrefix(outcome.Message, "Stopped by an operator: it loops.") {
			t.Errorf("%+v", outcome)
		}
	})
}

// While a call whose approval is claimed waits for its server, the policy changes and denies the call. The claim is
// released.
func TestDo_DenialReleasesTheClaimOfACallThatHasNotBegun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newApprovalPipeline()
		w.approvals.answerRequest = answerStates(approvalIn(approved))
		w.beginAfter(2*time.Second, func() {
			w.decide = decides(&policyv1.Decision{Effect: policyv1.Effect_EFFECT_DENY, Code: commonv1.Code_CODE_DENIED_BY_RULE})
		})
		got := w.do(t)
		if codeOf(got.Refusal) != commonv1.Code_CODE_DENIED_BY_RULE || w.count("begin") != 0 || w.count("release") != 1 {
			t.Errorf("%+v, %v", got.Refusal, w.steps)
		}
	})
}
