package pipeline_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/attempt"
	"github.com/sluice-mesh/sluice/services/gateway/internal/gatewaytest"
	"github.com/sluice-mesh/sluice/services/gateway/internal/pipeline"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/journal"
)

// newApprovalPipeline returns a pipeline in which each call needs an approval and has one limit.
func newApprovalPipeline() *testPipeline {
	w := newTestPipeline()
	d := limited(policyv1.OnLimiterError_ON_LIMITER_ERROR_DENY)
	d.Effect, d.Approval = policyv1.Effect_EFFECT_REQUIRE_APPROVAL, &policyv1.ApprovalTerms{Quorum: 1}
	w.decide = decides(d)
	w.hold = 45 * time.Second
	w.approvals.updates = make(chan *approvalv1.Approval, 1)
	w.approvals.answerClaim = func(*approvalv1.ClaimApprovalRequest) (*approvalv1.ClaimApprovalResponse, error) {
		return &approvalv1.ClaimApprovalResponse{Result: &approvalv1.ClaimApprovalResponse_Claimed{Claimed: &approvalv1.Claimed{
			Votes:    []*approvalv1.Vote{{Subject: "carol", Verdict: approvalv1.Verdict_VERDICT_APPROVE, Channel: approvalv1.VoteChannel_VOTE_CHANNEL_TOKEN}},
			Approval: approvalIn(approved), Bound: &approvalv1.BoundCall{Call: &policyv1.Call{ParamsJson: `{"name":"safe","arguments":{"stored":1.50}}`}},
		}}}, nil
	}
	return w
}

func refuseClaim(r *approvalv1.Refusal) func(*approvalv1.ClaimApprovalRequest) (*approvalv1.ClaimApprovalResponse, error) {
	return func(*approvalv1.ClaimApprovalRequest) (*approvalv1.ClaimApprovalResponse, error) {
		return &approvalv1.ClaimApprovalResponse{Result: &approvalv1.ClaimApprovalResponse_Refusal{Refusal: r}}, nil
	}
}

// newApprovalCall returns a call for a pipeline that newApprovalPipeline has returned.
func (w *testPipeline) newApprovalCall(t *testing.T) *attempt.Call {
	t.Helper()
	c := w.call(t)
	c.Identity = "http x"
	c.Tools = definitionFunc(func(_ context.Context, now bool) ([]byte, error) {
		if now {
			w.step("list")
		}
		return []byte("definition"), nil
	})
	return c
}

// do makes a call that newApprovalCall returns, and waits until the call's outcome has been reported to the approval
// service.
func (w *testPipeline) do(t *testing.T, change ...func(*attempt.Call)) pipeline.Result {
	t.Helper()
	c := w.newApprovalCall(t)
	for _, f := range change {
		f(c)
	}
	p := w.pipeline(t)
	defer p.Wait(t.Context())
	return p.Do(t.Context(), c)
}

// An approved call runs exactly as it was approved. Its steps have a fixed order, and each step is recorded.
func TestApproval_CallRunsAsApproved(t *testing.T) {
	t.Parallel()
	w := newApprovalPipeline()
	w.approvals.answerRequest = answerStates(approvalIn(approved))
	if got := w.do(t); got.Refusal != nil || got.Answer == nil {
		t.Fatalf("%+v", got.Refusal)
	}
	want := []string{"decide", "decide", "ask", "list", "decide", "claim", "reserve", "take", "intent", "send", "outcome", "complete", "settled"}
	if diff := cmp.Diff(want, w.steps); diff != "" {
		t.Errorf("steps (-want +got):\n%s", diff)
	}
	if got := string(w.sent[0].Body()); got != `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"safe","arguments":{"stored":1.50}}}` {
		t.Errorf("sent %s", got)
	}
	claim, intent, outcome := w.recordsOf(journal.KindClaim)[0], w.recordsOf(journal.KindIntent)[0], w.recordsOf(journal.KindOutcome)[0]
	if claim.DecisionID != intent.DecisionID || intent.DecisionID != outcome.DecisionID || intent.ApprovalID != "a-1" || intent.Attempt != 1 ||
		intent.ApprovalDigest != "ab" || claim.IdempotencyKey == "" || claim.LimitLeaseID != "" || intent.LimitLeaseID != "lease" {
		t.Errorf("claim %+v\nintent %+v\noutcome %+v", claim, intent, outcome)
	}
	if votes := intent.Votes; len(votes) != 1 || votes[0].Subject != "carol" || votes[0].Verdict != "approve" || votes[0].Channel != "token" || len(outcome.Votes) != 0 {
		t.Errorf("the intent names the votes %+v, and the outcome %+v", votes, outcome.Votes)
	}
	if len(w.approvals.outcomes) != 1 || w.approvals.outcomes[0] != approvalv1.CallOutcome_CALL_OUTCOME_DONE {
		t.Errorf("reported %v", w.approvals.outcomes)
	}
}

// A held call continues as soon as approvers have decided. If the caller has requested progress, it receives progress
// notifications while the call is held.
func TestApproval_CallIsHeldUntilDecided(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		decided *approvalv1.Approval
		after   time.Duration
		code    commonv1.Code
		took    time.Duration
		reports int
	}{
		"approved":            {approvalIn(approved), 25 * time.Second, commonv1.Code_CODE_UNSPECIFIED, 25 * time.Second, 2},
		"denied":              {approvalIn(denied), time.Second, commonv1.Code_CODE_APPROVAL_DENIED, time.Second, 0},
		"no approver decides": {nil, 0, commonv1.Code_CODE_APPROVAL_PENDING, 45 * time.Second, 4},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newApprovalPipeline()
				w.approvals.answerRequest = answerStates(approvalIn(pending))
				w.approvals.updates = make(chan *approvalv1.Approval, 1)
				if tt.decided != nil {
					time.AfterFunc(tt.after, func() { w.approvals.updates <- tt.decided })
				}
				begin, reply := time.Now(), new(heldReply)
				got := w.do(t, func(c *attempt.Call) { c.Reply = reply })
				if took := time.Since(begin); took != tt.took || reply.held != 1 || reply.reports != tt.reports {
					t.Errorf("it took %v, with %d notices that it is held and %d progress messages", took, reply.held, reply.reports)
				}
				if code := codeOf(got.Refusal); code != tt.code || w.count("send") == 1 != (tt.code == 0) {
					t.Errorf("%v, %v", got.Refusal, w.steps)
				}
				if got.Refusal != nil && (got.Refusal.Approval == nil || got.Refusal.Approval.ID != "a-1") {
					t.Errorf("the ticket is %+v", got.Refusal.Approval)
				}
				if tt.code == commonv1.Code_CODE_APPROVAL_PENDING && !strings.Contains(got.Refusal.Text(), "Call the same tool again") {
					t.Errorf("the text for the model is %q", got.Refusal.Text())
				}
			})
		})
	}
}

func codeOf(r *refusal.Refusal) commonv1.Code {
	if r == nil {
		return commonv1.Code_CODE_UNSPECIFIED
	}
	return r.Code
}

// If the caller disconnects or the gateway stops, the call is no longer held. It then runs only if the caller makes it
// again.
func TestApproval_HeldCallIsReleased(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(p *pipeline.Pipeline, hangUp func()){
		"the caller hangs up": func(_ *pipeline.Pipeline, hangUp func()) { hangUp() },
		"the gateway stops":   func(p *pipeline.Pipeline, _ func()) { p.Drain() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newApprovalPipeline()
				w.approvals.answerRequest = answerStates(approvalIn(pending))
				p := w.pipeline(t)
				ctx, hangUp := context.WithCancel(t.Context())
				defer hangUp()
				time.AfterFunc(time.Second, func() { end(p, hangUp) })
				begin := time.Now()
				got := p.Do(ctx, w.newApprovalCall(t))
				if took := time.Since(begin); took != time.Second || codeOf(got.Refusal) != commonv1.Code_CODE_APPROVAL_PENDING || w.count("send") != 0 {
					t.Errorf("after %v: %v, %v", took, got.Refusal, w.steps)
				}
			})
		})
	}
}

// Case A4. If the approval service refuses a claim, the call is not sent, and the refusal contains the reason.
func TestApproval_ClaimMayBeRefused(t *testing.T) {
	t.Parallel()
	deny := allow()
	deny.Effect, deny.Code = policyv1.Effect_EFFECT_DENY, commonv1.Code_CODE_DENIED_BY_RULE
	for name, tt := range map[string]struct {
		given func(*testPipeline)
		call  func(*attempt.Call)
		code  commonv1.Code
		steps []string
	}{
		"policy denies by now": {
			func(w *testPipeline) {
				first := w.decide
				w.decide = func(ctx context.Context, r *policyv1.DecideCallRequest) (*policyv1.DecideCallResponse, error) {
					if w.count("ask") == 0 {
						return first(ctx, r)
					}
					return &policyv1.DecideCallResponse{Decision: deny}, nil
				}
				w.approvals.answerClaim = refuseClaim(&approvalv1.Refusal{Code: commonv1.Code_CODE_DENIED_BY_RULE, Approval: approvalIn(denied)})
			}, nil, commonv1.Code_CODE_DENIED_BY_RULE,
			[]string{"decide", "decide", "ask", "list", "decide", "claim", "take", "settled"},
		},
		"policy denies by now, the claim is given all the same": {
			func(w *testPipeline) {
				first := w.decide
				w.decide = func(ctx context.Context, r *policyv1.DecideCallRequest) (*policyv1.DecideCallResponse, error) {
					if w.count("ask") == 0 {
						return first(ctx, r)
					}
					return &policyv1.DecideCallResponse{Decision: deny}, nil
				}
			}, nil, commonv1.Code_CODE_DENIED_BY_RULE,
			[]string{"decide", "decide", "ask", "list", "decide", "claim", "take", "release", "settled"},
		},
		"used by another, the reservation unused": {
			func(w *testPipeline) {
				w.approvals.answerClaim = refuseClaim(&approvalv1.Refusal{Code: commonv1.Code_CODE_APPROVAL_USED, LeaseUnused: true})
			}, nil, commonv1.Code_CODE_APPROVAL_USED,
			[]string{"decide", "decide", "ask", "list", "decide", "claim", "reserve", "take", "settle", "settled"},
		},
		"used by another, the reservation its": {
			func(w *testPipeline) {
				w.approvals.answerClaim = refuseClaim(&approvalv1.Refusal{Code: commonv1.Code_CODE_APPROVAL_USED})
			}, nil, commonv1.Code_CODE_APPROVAL_USED,
			[]string{"decide", "decide", "ask", "list", "decide", "claim", "reserve", "take", "settled"},
		},
		"the token is revoked by now": {
			nil, func(c *attempt.Call) { c.Credential = gatewaytest.RevokedWhen(func() bool { return true }) }, commonv1.Code_CODE_POLICY_UNAVAILABLE,
			[]string{"decide", "decide", "ask"},
		},
		"the claim can't be recorded": {
			func(w *testPipeline) { w.broken[journal.KindClaim] = errBoom }, nil, commonv1.Code_CODE_AUDIT_UNAVAILABLE,
			[]string{"decide", "decide", "ask", "list", "decide", "claim", "settled"},
		},
		"X5 the caller has its share of the journal": {
			func(w *testPipeline) { w.broken[journal.KindClaim] = journal.ErrQuota }, nil, commonv1.Code_CODE_ABUSE_LIMITED,
			[]string{"decide", "decide", "ask", "list", "decide", "claim"},
		},
		"the intent can't be recorded": {
			func(w *testPipeline) { w.broken[journal.KindIntent] = errBoom }, nil, commonv1.Code_CODE_AUDIT_UNAVAILABLE,
			[]string{"decide", "decide", "ask", "list", "decide", "claim", "reserve", "take", "intent", "release", "settle", "settled"},
		},
		"nothing is said": {
			func(w *testPipeline) { w.approvals.answerClaim = refuseClaim(nil) }, nil, commonv1.Code_CODE_APPROVAL_UNAVAILABLE,
			[]string{"decide", "decide", "ask", "list", "decide", "claim", "reserve", "take", "settled"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newApprovalPipeline()
				w.approvals.answerRequest = answerStates(approvalIn(approved))
				if tt.given != nil {
					tt.given(w)
				}
				var change []func(*attempt.Call)
				if tt.call != nil {
					change = append(change, tt.call)
				}
				got := w.do(t, change...)
				if codeOf(got.Refusal) != tt.code || w.count("send") != 0 || w.count("refusal") != 1 {
					t.Errorf("%+v", got.Refusal)
				}
				// The refusal is recorded while the claim is being released, so these two steps may happen in either
				// order.
				steps := slices.DeleteFunc(w.steps, func(s string) bool { return s == "refusal" })
				if diff := cmp.Diff(tt.steps, steps); diff != "" {
					t.Errorf("steps (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// If an approval changes after the gateway has read it and before the gateway claims it, the gateway reads it again.
func TestDo_LostClaimIsFollowedByAnotherLookAtTheApproval(t *testing.T) {
	t.Parallel()
	for name, first := range map[string]func(*approvalv1.ClaimApprovalRequest) (*approvalv1.ClaimApprovalResponse, error){
		"another attempt": func(*approvalv1.ClaimApprovalRequest) (*approvalv1.ClaimApprovalResponse, error) {
			return nil, status.Error(codes.Aborted, "ATTEMPT_CHANGED")
		},
		"other terms": refuseClaim(&approvalv1.Refusal{Code: commonv1.Code_CODE_APPROVAL_PENDING, LeaseUnused: true}),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newApprovalPipeline()
			w.approvals.answerRequest = answerStates(approvalUntil(approved))
			asking := w.decide
			w.decide = func(ctx context.Context, r *policyv1.DecideCallRequest) (*policyv1.DecideCallResponse, error) {
				if w.count("ask") == 1 { // from now on policy allows the call without an approval
					return &policyv1.DecideCallResponse{Decision: limited(policyv1.OnLimiterError_ON_LIMITER_ERROR_DENY)}, nil
				}
				return asking(ctx, r)
			}
			then, n := w.approvals.answerClaim, 0
			var claims []string
			w.approvals.answerClaim = func(r *approvalv1.ClaimApprovalRequest) (*approvalv1.ClaimApprovalResponse, error) {
				claims = append(claims, r.GetClaimId())
				if n++; n == 1 {
					return first(r)
				}
				return then(r)
			}
			if got := w.do(t); got.Refusal != nil || w.count("send") != 1 {
				t.Errorf("%+v, %v", got.Refusal, w.steps)
			}
			if intents := w.recordsOf(journal.KindIntent); len(claims) != 1 || w.count("cancel") != 1 || len(intents) != 1 || intents[0].DecisionID == claims[0] {
				t.Errorf("claims %v, intents %+v, %v", claims, intents, w.steps)
			}
			if open := len(w.recordsOf(journal.KindClaim)) - len(w.recordsOf(journal.KindSettled)); open != 0 {
				t.Errorf("%d claims are left open", open)
			}
		})
	}
}

// Case U1. The gateway reports the outcome of an approved call to the approval service. If the call was never sent, the
// gateway first releases the claim and then the limits.
func TestApproval_OutcomeIsReported(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		answer func(context.Context, upstream.Request) (upstream.Answer, error)
		told   []approvalv1.CallOutcome
		last   []string
	}{
		"a tool's error": {func(_ context.Context, r upstream.Request) (upstream.Answer, error) {
			return result(r, `{"isError":true}`), nil
		}, []approvalv1.CallOutcome{approvalv1.CallOutcome_CALL_OUTCOME_FAILED}, []string{"outcome", "complete", "settled"}},
		"no answer": {func(context.Context, upstream.Request) (upstream.Answer, error) {
			return upstream.Answer{}, upstream.ErrNoAnswer
		}, []approvalv1.CallOutcome{approvalv1.CallOutcome_CALL_OUTCOME_UNKNOWN}, []string{"outcome", "complete", "settled"}},
		"never sent": {func(context.Context, upstream.Request) (upstream.Answer, error) {
			return upstream.Answer{}, upstream.ErrNeverSent
		}, nil, []string{"outcome", "release", "settle", "settled"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newApprovalPipeline()
			w.approvals.answerRequest = answerStates(approvalIn(approved))
			w.answer = tt.answer
			w.do(t)
			if diff := cmp.Diff(tt.told, w.approvals.outcomes); diff != "" {
				t.Errorf("reports (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.last, w.steps[len(w.steps)-len(tt.last):]); diff != "" {
				t.Errorf("last steps (-want +got):\n%s", diff)
			}
		})
	}
}

// If the response to a claim is lost, the gateway retries the claim. If the retry also fails, the gateway releases the
// claim, because the approval service may have accepted one of the two requests.
func TestApproval_LostClaimReleasesItsLimits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newApprovalPipeline()
		w.approvals.answerRequest = answerStates(approvalIn(approved))
		var claims []string
		w.approvals.answerClaim = func(r *approvalv1.ClaimApprovalRequest) (*approvalv1.ClaimApprovalResponse, error) {
			claims = append(claims, r.GetClaimId())
			return nil, errAway
		}
		got := w.do(t)
		if codeOf(got.Refusal) != commonv1.Code_CODE_APPROVAL_UNAVAILABLE || w.count("send") != 0 {
			t.Errorf("%+v, %v", got.Refusal, w.steps)
		}
		if len(claims) != 2 || claims[0] != claims[1] || len(w.approvals.released) != 1 || w.approvals.released[0] != claims[0] {
			t.Errorf("claims %v, given back %v", claims, w.approvals.released)
		}
	})
}

// A call contains the id of an approval. If the approval was denied or does not exist, the call is refused with that
// state, and no new approval is requested. If the approval was granted, the call runs.
func TestApproval_CallThatNamesItGetsItsState(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		id    string
		state *approvalv1.Approval
		code  commonv1.Code
		asks  int
	}{
		"one that was denied":     {"a-1", approvalIn(denied), commonv1.Code_CODE_APPROVAL_DENIED, 0},
		"one that is approved":    {"a-1", approvalIn(approved), commonv1.Code_CODE_UNSPECIFIED, 1},
		"one that there is not":   {"a-2", approvalIn(approved), commonv1.Code_CODE_APPROVAL_EXPIRED, 0},
		"none: it asks by itself": {"", approvalIn(denied), commonv1.Code_CODE_APPROVAL_DENIED, 1},
	} {
		w := newApprovalPipeline()
		w.approvals.answerRequest = answerStates(tt.state)
		got := w.do(t, func(c *attempt.Call) {
			meta := ""
			if tt.id != "" {
				meta = `,"_meta":{"dev.sluice/approval":"` + tt.id + `"}`
			}
			c.Message = parse(t, `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"safe","arguments":{"path":"/srv"}`+meta+`}}`)
		})
		if codeOf(got.Refusal) != tt.code || w.count("ask") != tt.asks {
			t.Errorf("%s: %+v, %v", name, got.Refusal, w.steps)
		}
	}
}

// Case N2. The number of one principal's held calls is limited. The principal's further calls are refused immediately,
// and the refusals contain the ids of their approvals. Other principals' calls are still held.
func TestApproval_HeldCallsAreLimited(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newApprovalPipeline()
		w.approvals.answerRequest = answerStates(approvalIn(pending))
		p := w.pipeline(t)
		took := make(chan time.Duration, 100)
		for i := range 20 {
			go func() {
				c := w.newApprovalCall(t)
				if i == 19 {
					c.Principal = caller("ben")
					c.Principal.Chain = nil // with a chain, ben would share its creator's quota
				}
				begin := time.Now()
				p.Do(t.Context(), c)
				took <- time.Since(begin)
			}()
		}
		held := 0
		for range 20 {
			if <-took == 45*time.Second {
				held++
			}
		}
		if held != 17 {
			t.Errorf("%d calls were held, want 16 of the one and the other's", held)
		}
	})
}
