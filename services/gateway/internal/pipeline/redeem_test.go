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
	"google.golang.org/protobuf/types/known/timestamppb"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/attempt"
	"github.com/sluice-mesh/sluice/services/gateway/internal/pipeline"
	"github.com/sluice-mesh/sluice/services/internal/journal"
)

// until is an approval in a state, with times.
func until(state approvalv1.ApprovalState) *approvalv1.Approval {
	a := in(state)
	a.DecideBefore = timestamppb.New(time.Now().Add(15 * time.Minute))
	return a
}

// ticketed is a world in which a call got a ticket, people have approved it, and policy
// decides otherwise by now. What happened until then is forgotten.
func ticketed(t *testing.T, d *policyv1.Decision) (*world, *pipeline.Pipeline) {
	t.Helper()
	w := approving()
	w.hold = 0
	w.people.asked = asks(until(pending))
	p := w.pipeline(t)
	if got := p.Do(t.Context(), w.asking(t)); codeOf(got.Refusal) != commonv1.Code_CODE_APPROVAL_PENDING {
		t.Fatalf("no ticket: %+v", got.Refusal)
	}
	w.people.asked, w.decide = asks(until(approved)), decides(d)
	w.steps, w.records = nil, nil
	return w, p
}

func allowed() *policyv1.Decision {
	d := allow()
	d.Limits = []*policyv1.RuleLimit{limit(0)}
	return d
}

// An allowed call that has an approval uses it up. Whatever the approval service
// answers, or does not, it runs: once, and within its limits.
func TestAnAllowedCallUsesUpItsApproval(t *testing.T) {
	t.Parallel()
	const stored = `{"name":"safe","arguments":{"stored":1.50}}`
	says := func(code commonv1.Code) func(*world) {
		return func(w *world) { w.people.claimed = refusesClaim(&approvalv1.Refusal{Code: code, LeaseUnused: true}) }
	}
	isIn := func(state approvalv1.ApprovalState) func(*world) {
		return func(w *world) { w.people.asked = asks(until(state)) }
	}
	claim := []string{"decide", "get", "list", "decide", "claim", "reserve", "take"}
	ran := []string{"intent", "send", "outcome", "complete", "settled"}
	freely := []string{"reserve", "intent", "send", "outcome"}
	for name, tt := range map[string]struct {
		given func(*world)
		body  string
		steps []string
	}{
		"it is given":           {nil, stored, slices.Concat(claim, ran)},
		"another has used it":   {says(commonv1.Code_CODE_APPROVAL_USED), "", slices.Concat(claim, []string{"settle", "settled"}, freely)},
		"it has expired":        {says(commonv1.Code_CODE_APPROVAL_EXPIRED), "", slices.Concat(claim, []string{"settle", "settled"}, freely)},
		"votes count no longer": {says(commonv1.Code_CODE_APPROVAL_PENDING), "", slices.Concat(claim, []string{"settle", "settled"}, freely)},
		"another definition":    {says(commonv1.Code_CODE_TOOL_CHANGED), "", slices.Concat(claim, []string{"settle", "settled"}, freely)},
		"the lease is another's": {func(w *world) {
			w.people.claimed = refusesClaim(&approvalv1.Refusal{Code: commonv1.Code_CODE_APPROVAL_USED})
		}, "", slices.Concat(claim, []string{"settled"}, freely)},
		"nothing is said": {func(w *world) { w.people.claimed = refusesClaim(nil) }, "", slices.Concat(claim, []string{"settled"}, freely)},
		"it is pending":   {isIn(pending), "", slices.Concat([]string{"decide", "get"}, freely)},
		"it is claimed":   {isIn(approvalv1.ApprovalState_APPROVAL_STATE_CLAIMED), "", slices.Concat([]string{"decide", "get"}, freely)},
		"it has run":      {isIn(approvalv1.ApprovalState_APPROVAL_STATE_DONE), "", slices.Concat([]string{"decide", "get"}, freely)},
		"it is denied":    {isIn(denied), "", slices.Concat([]string{"decide", "get"}, freely)},
		"the service is away": {func(w *world) {
			w.people.asked = func() (*approvalv1.RequestApprovalResponse, error) { return nil, errAway }
		}, "", slices.Concat([]string{"decide", "get"}, freely)},
		"away since it was asked": {func(w *world) { w.people.claimed = claimFails(errAway) }, "", slices.Concat(claim, []string{"decide", "take", "reserve"}, ran)},
		"it is another attempt": {func(w *world) {
			then, n := w.people.claimed, 0
			w.people.claimed = func(r *approvalv1.ClaimApprovalRequest) (*approvalv1.ClaimApprovalResponse, error) {
				if n++; n == 1 {
					return nil, status.Error(codes.Aborted, "ATTEMPT_CHANGED")
				}
				return then(r)
			}
		}, stored, slices.Concat(claim, []string{"settled"}, claim[1:], ran)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w, p := ticketed(t, allowed())
				if tt.given != nil {
					tt.given(w)
				}
				got := p.Do(t.Context(), w.asking(t))
				p.Wait(t.Context())
				if got.Refusal != nil || w.count("send") != 1 {
					t.Fatalf("%+v, %v", got.Refusal, w.steps)
				}
				if diff := cmp.Diff(tt.steps, w.steps); diff != "" {
					t.Errorf("steps (-want +got):\n%s", diff)
				}
				want := `"params":` + tt.body
				if tt.body == "" {
					want = `"params":{"name":"safe","arguments":{"path":"/srv"}}`
				}
				if sent := string(w.sent[0].Body()); !strings.Contains(sent, want) {
					t.Errorf("sent %s", sent)
				}
				if open := len(w.of(journal.KindClaim)) - len(w.of(journal.KindSettled)); open != 0 {
					t.Errorf("%d claims are left open", open)
				}
			})
		})
	}
}

func claimFails(err error) func(*approvalv1.ClaimApprovalRequest) (*approvalv1.ClaimApprovalResponse, error) {
	return func(*approvalv1.ClaimApprovalRequest) (*approvalv1.ClaimApprovalResponse, error) { return nil, err }
}

// An allowed call whose tool is not listed runs, for policy does not ask for it.
func TestAnAllowedCallNeedsNoList(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, p := ticketed(t, allow())
		c := w.asking(t)
		c.Tools = defines(func(context.Context, bool) ([]byte, error) { return nil, errBoom })
		if got := p.Do(t.Context(), c); got.Refusal != nil || w.count("claim") != 0 || w.count("send") != 1 {
			t.Errorf("%+v, %v", got.Refusal, w.steps)
		}
	})
}

// What a limit refuses is refused with an approval as well, which stays.
func TestAnAllowedCallIsHeldToItsLimits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, p := ticketed(t, allowed())
		w.reserve = refuses(nil)
		got := p.Do(t.Context(), w.asking(t))
		if got.Refusal == nil || w.count("take") != 0 || w.count("send") != 0 {
			t.Errorf("%+v, %v", got.Refusal, w.steps)
		}
	})
}

// A denied call ends its approval, and is refused by policy's own words whatever the
// approval service makes of it.
func TestADeniedCallEndsItsApproval(t *testing.T) {
	t.Parallel()
	deny := allow()
	deny.Effect, deny.Code, deny.Message = policyv1.Effect_EFFECT_DENY, commonv1.Code_CODE_DENIED_BY_RULE, "not any more"
	for name, tt := range map[string]struct {
		given    func(*world)
		steps    []string
		released int
	}{
		"it ends":          {func(w *world) { w.people.claimed = refusesClaim(&approvalv1.Refusal{Code: deny.GetCode()}) }, []string{"decide", "get", "decide", "claim", "take"}, 0},
		"it is given":      {func(*world) {}, []string{"decide", "get", "decide", "claim", "take", "release"}, 1},
		"nothing is known": {func(w *world) { w.people.claimed = claimFails(errAway) }, []string{"decide", "get", "decide", "claim", "take", "decide", "take", "release"}, 1},
		"it has run":       {func(w *world) { w.people.asked = asks(until(approvalv1.ApprovalState_APPROVAL_STATE_DONE)) }, []string{"decide", "get"}, 0},
		"the service is away": {func(w *world) {
			w.people.asked = func() (*approvalv1.RequestApprovalResponse, error) { return nil, errAway }
		}, []string{"decide", "get"}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w, p := ticketed(t, deny)
				tt.given(w)
				var effects []policyv1.Effect
				claim := w.people.claimed
				w.people.claimed = func(r *approvalv1.ClaimApprovalRequest) (*approvalv1.ClaimApprovalResponse, error) {
					effects = append(effects, r.GetDecision().GetEffect())
					return claim(r)
				}
				got := p.Do(t.Context(), w.asking(t))
				p.Wait(t.Context())
				if got.Refusal.Text() != "Denied by policy: not any more" || w.count("send") != 0 || w.count("reserve") != 0 {
					t.Errorf("%+v, %v", got.Refusal, w.steps)
				}
				steps := slices.DeleteFunc(w.steps, func(s string) bool { return s == "refusal" || s == "settled" })
				if diff := cmp.Diff(tt.steps, steps); diff != "" {
					t.Errorf("steps (-want +got):\n%s", diff)
				}
				if slices.ContainsFunc(effects, func(e policyv1.Effect) bool { return e != policyv1.Effect_EFFECT_DENY }) || len(w.people.released) != tt.released {
					t.Errorf("claimed on %v, given back %v", effects, w.people.released)
				}
				if open := len(w.of(journal.KindClaim)) - len(w.of(journal.KindSettled)); open != 0 {
					t.Errorf("%d claims are left open", open)
				}
			})
		})
	}
}

// Only the very call that people were asked about meets its approval, until its last
// moment; others don't ask the approval service at all.
func TestOtherCallsMeetNoApproval(t *testing.T) {
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
		"another chain":               {who(func(p *identityv1.Principal) { p.Chain[0].Subject = "somebody" }), 0, 0},
		"no chain":                    {who(func(p *identityv1.Principal) { p.Chain = nil }), 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w, p := ticketed(t, allow())
				time.Sleep(tt.later)
				c := w.asking(t)
				if tt.change != nil {
					tt.change(t, &c)
				}
				got := p.Do(t.Context(), c)
				p.Wait(t.Context())
				if got.Refusal != nil || w.count("get") != tt.gets || w.count("take") != tt.gets {
					t.Errorf("%+v, %v", got.Refusal, w.steps)
				}
			})
		})
	}
}

// What has run its course is forgotten: it is asked for once.
func TestAnEndedApprovalIsForgotten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, p := ticketed(t, allow())
		w.people.asked = asks(until(approvalv1.ApprovalState_APPROVAL_STATE_DONE))
		for range 3 {
			if got := p.Do(t.Context(), w.asking(t)); got.Refusal != nil {
				t.Errorf("%+v", got.Refusal)
			}
		}
		if w.count("get") != 1 || w.count("send") != 3 {
			t.Errorf("%v", w.steps)
		}
	})
}
