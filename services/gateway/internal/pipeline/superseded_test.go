package pipeline_test

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/attempt"
	"github.com/sluice-mesh/sluice/services/gateway/internal/pipeline"
	"github.com/sluice-mesh/sluice/services/internal/journal"
)

// approvalUntil returns an approval with the given state and with times at which it expires.
func approvalUntil(state approvalv1.ApprovalState) *approvalv1.Approval {
	a := approvalIn(state)
	a.DecideBefore = timestamppb.New(time.Now().Add(15 * time.Minute))
	return a
}

// newPendingCall returns a pipeline in which a call was refused because it needs an approval. After the refusal,
// approvers have approved the call, and the policy has changed so that it now returns the decision d. The list of
// recorded steps is empty.
func newPendingCall(t *testing.T, d *policyv1.Decision) (*testPipeline, *pipeline.Pipeline) {
	t.Helper()
	w := newApprovalPipeline()
	w.hold = 0
	w.approvals.answerRequest = answerStates(approvalUntil(pending))
	p := w.pipeline(t)
	if got := p.Do(t.Context(), w.newApprovalCall(t)); codeOf(got.Refusal) != commonv1.Code_CODE_APPROVAL_PENDING {
		t.Fatalf("no ticket: %+v", got.Refusal)
	}
	w.approvals.answerRequest, w.decide = answerStates(approvalUntil(approved)), decides(d)
	w.steps, w.records = nil, nil
	return w, p
}

func allowDecision() *policyv1.Decision {
	d := allow()
	d.Limits = []*policyv1.RuleLimit{limit(0)}
	return d
}

// errEnded is the error that the approval service returns for an approval that was claimed or has ended.
var errEnded = status.Error(codes.FailedPrecondition, "NOT_PENDING")

// The policy allows a call that has an unclaimed approval. The approval is cancelled before the call is sent, because
// its votes could otherwise allow a later call. If the approval cannot be cancelled, the call is not sent.
func TestDo_AllowedCallEndsItsUnclaimedApproval(t *testing.T) {
	t.Parallel()
	isIn := func(state approvalv1.ApprovalState) func(*testPipeline) {
		return func(w *testPipeline) { w.approvals.answerRequest = answerStates(approvalUntil(state)) }
	}
	ends := []string{"decide", "get", "cancel"}
	looks := ends[:2]
	runs := []string{"reserve", "intent", "send", "outcome"}
	for name, tt := range map[string]struct {
		given func(*testPipeline)
		steps []string
		code  commonv1.Code
	}{
		"it is approved": {nil, slices.Concat(ends, runs), 0},
		"it is pending":  {isIn(pending), slices.Concat(ends, runs), 0},
		"it is claimed":  {isIn(approvalv1.ApprovalState_APPROVAL_STATE_CLAIMED), slices.Concat(looks, runs), 0},
		"it has run":     {isIn(approvalv1.ApprovalState_APPROVAL_STATE_DONE), slices.Concat(looks, runs), 0},
		"it is denied":   {isIn(denied), slices.Concat(looks, runs), 0},
		"it was removed": {func(w *testPipeline) {
			w.approvals.cancel = func(int) error { return status.Error(codes.NotFound, "APPROVAL_UNKNOWN") }
		}, slices.Concat(ends, runs), 0},
		"it is claimed in this moment": {func(w *testPipeline) {
			w.approvals.cancel = func(int) error {
				isIn(approvalv1.ApprovalState_APPROVAL_STATE_CLAIMED)(w)
				return errEnded
			}
		}, slices.Concat(ends, []string{"get"}, runs), 0},
		"it is decided in this moment": {func(w *testPipeline) {
			w.approvals.cancel = func(n int) error {
				if n == 1 {
					return errEnded
				}
				return nil
			}
		}, slices.Concat(ends, []string{"get", "cancel"}, runs), 0},
		"it changes all the time": {func(w *testPipeline) { w.approvals.cancel = func(int) error { return errEnded } }, nil, commonv1.Code_CODE_APPROVAL_UNAVAILABLE},
		"the service is away": {func(w *testPipeline) {
			w.approvals.answerRequest = func() (*approvalv1.RequestApprovalResponse, error) { return nil, errAway }
		}, slices.Concat(looks, []string{"refusal"}), commonv1.Code_CODE_APPROVAL_UNAVAILABLE},
		"the service is away since": {func(w *testPipeline) { w.approvals.cancel = func(int) error { return errAway } }, slices.Concat(ends, []string{"refusal"}), commonv1.Code_CODE_APPROVAL_UNAVAILABLE},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w, p := newPendingCall(t, allowDecision())
				if tt.given != nil {
					tt.given(w)
				}
				got := p.Do(t.Context(), w.newApprovalCall(t))
				p.Wait(t.Context())
				if codeOf(got.Refusal) != tt.code || w.count("send") == 1 != (tt.code == 0) || len(w.recordsOf(journal.KindClaim)) != 0 {
					t.Fatalf("%+v, %v", got.Refusal, w.steps)
				}
				if diff := cmp.Diff(tt.steps, w.steps); diff != "" && tt.steps != nil {
					t.Errorf("steps (-want +got):\n%s", diff)
				}
				if tt.code != 0 && !got.Refusal.Retryable() {
					t.Errorf("%+v can't be tried again", got.Refusal)
				}
				if tt.code == 0 && !strings.Contains(string(w.sent[0].Body()), `"params":{"name":"safe","arguments":{"path":"/srv"}}`) {
					t.Errorf("sent %s", w.sent[0].Body())
				}
			})
		})
	}
}

// The policy now allows a call that contains its approval's id, for example the call of a resumed task. The call runs
// once. If the client repeats the call, it is refused, because the client may have lost the first answer.
func TestDo_AllowedCallThatNamesItsApprovalRunsOnce(t *testing.T) {
	t.Parallel()
	for name, state := range map[string]approvalv1.ApprovalState{"pending": pending, "approved": approved} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w, p := newPendingCall(t, allowDecision())
				w.approvals.answerRequest = answerStates(approvalUntil(state))
				c := w.newApprovalCall(t)
				c.ApprovalID = "a-1"
				if got := p.Do(t.Context(), c); got.Refusal != nil || w.count("send") != 1 || w.count("cancel") != 1 {
					t.Fatalf("%+v, %v", got.Refusal, w.steps)
				}
				if got := p.Do(t.Context(), c); codeOf(got.Refusal) != commonv1.Code_CODE_APPROVAL_EXPIRED || w.count("send") != 1 {
					t.Errorf("repeated: %+v, %v", got.Refusal, w.steps)
				}
			})
		})
	}
}

// After a call's unclaimed approval was cancelled, the call is still refused if it exceeds a limit.
func TestDo_AllowedCallIsHeldToItsLimitsAfterItsApprovalEnded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, p := newPendingCall(t, allowDecision())
		w.reserve = refuseReservation(nil)
		got := p.Do(t.Context(), w.newApprovalCall(t))
		if got.Refusal == nil || w.count("cancel") != 1 || w.count("send") != 0 {
			t.Errorf("%+v, %v", got.Refusal, w.steps)
		}
	})
}

// If the policy denies a call, the call's approval is cancelled. The call is refused with the policy's message even if
// the cancellation fails.
func TestDo_DeniedCallEndsItsUnclaimedApproval(t *testing.T) {
	t.Parallel()
	deny := allow()
	deny.Effect, deny.Code, deny.Message = policyv1.Effect_EFFECT_DENY, commonv1.Code_CODE_DENIED_BY_RULE, "not any more"
	for name, tt := range map[string]struct {
		given func(*testPipeline)
		steps []string
	}{
		"it is approved": {func(*testPipeline) {}, []string{"decide", "get", "cancel", "refusal"}},
		"it has run": {func(w *testPipeline) {
			w.approvals.answerRequest = answerStates(approvalUntil(approvalv1.ApprovalState_APPROVAL_STATE_DONE))
		}, []string{"decide", "get", "refusal"}},
		"the service is away": {func(w *testPipeline) {
			w.approvals.answerRequest = func() (*approvalv1.RequestApprovalResponse, error) { return nil, errAway }
		}, []string{"decide", "get", "refusal"}},
		"the service is away since": {func(w *testPipeline) { w.approvals.cancel = func(int) error { return errAway } }, []string{"decide", "get", "cancel", "refusal"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w, p := newPendingCall(t, deny)
				tt.given(w)
				got := p.Do(t.Context(), w.newApprovalCall(t))
				p.Wait(t.Context())
				if got.Refusal.Text() != "Denied by policy: not any more" {
					t.Errorf("%+v, %v", got.Refusal, w.steps)
				}
				if diff := cmp.Diff(tt.steps, w.steps); diff != "" {
					t.Errorf("steps (-want +got):\n%s", diff)
				}
				if w.approvals.cancelled != nil && w.approvals.cancelled[0] != "policy denies this call now" {
					t.Errorf("it was cancelled because %q", w.approvals.cancelled)
				}
			})
		})
	}
}

// Only an identical call uses the approval, and only until the approval expires. For other calls, the gateway sends no
// request to the approval service.
func TestApproval_OtherCallsDoNotUseIt(t *testing.T) {
	t.Parallel()
	message := func(params string) func(*testing.T, *attempt.Call) {
		return func(t *testing.T, c *attempt.Call) {
			c.Message = parse(t, `{"jsonrpc":"2.0","id":8,"method":"tools/call","params":`+params+`}`)
		}
	}
	who := func(change func(*identityv1.Principal)) func(*testing.T, *attempt.Call) {
		return func(_ *testing.T, c *attempt.Call) { change(c.Principal) }
	}
	for name, tt := range map[string]struct {
		change func(*testing.T, *attempt.Call)
		later  time.Duration
		gets   int
	}{
		"the same, written otherwise": {message(`{"_meta":{"progressToken":1,"dev.sluice/run":"r"},"arguments":{ "path":"\/srv" },"name":"safe"}`), 20*time.Minute - 1, 1},
		"another session":             {who(func(p *identityv1.Principal) { p.Session, p.Run, p.TokenId = "x", "y", "z" }), 0, 1},
		"when its time is over":       {nil, 20 * time.Minute, 0},
		"other arguments":             {message(`{"name":"safe","arguments":{"path":"/srv/"}}`), 0, 0},
		"more in _meta":               {message(`{"name":"safe","arguments":{"path":"/srv"},"_meta":{"x":1}}`), 0, 0},
		"another tool":                {message(`{"name":"other","arguments":{"path":"/srv"}}`), 0, 0},
		"another server":              {func(_ *testing.T, c *attempt.Call) { c.Server = "mail" }, 0, 0},
		"another behind its name":     {func(_ *testing.T, c *attempt.Call) { c.Identity = "http y" }, 0, 0},
		"another subject":             {who(func(p *identityv1.Principal) { p.Subject = "ben" }), 0, 0},
		"another agent":               {who(func(p *identityv1.Principal) { p.Agent = "ops" }), 0, 0},
		"another tenant":              {who(func(p *identityv1.Principal) { p.Tenant = "other" }), 0, 0},
		"another chain":               {who(func(p *identityv1.Principal) { p.Chain[0].Subject = "eve" }), 0, 0},
		"no chain":                    {who(func(p *identityv1.Principal) { p.Chain = nil }), 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w, p := newPendingCall(t, allow())
				time.Sleep(tt.later)
				c := w.newApprovalCall(t)
				if tt.change != nil {
					tt.change(t, c)
				}
				got := p.Do(t.Context(), c)
				p.Wait(t.Context())
				if got.Refusal != nil || w.count("get") != tt.gets || w.count("cancel") != tt.gets {
					t.Errorf("%+v, %v", got.Refusal, w.steps)
				}
			})
		})
	}
}

// The gateway reads an approval that has ended once, and then forgets it.
func TestApproval_EndedOneIsForgotten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, p := newPendingCall(t, allow())
		w.approvals.answerRequest = answerStates(approvalUntil(approvalv1.ApprovalState_APPROVAL_STATE_DONE))
		for range 3 {
			if got := p.Do(t.Context(), w.newApprovalCall(t)); got.Refusal != nil {
				t.Errorf("%+v", got.Refusal)
			}
		}
		if w.count("get") != 1 || w.count("send") != 3 {
			t.Errorf("%v", w.steps)
		}
	})
}
