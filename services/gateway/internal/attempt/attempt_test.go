package attempt_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	ratelimitv1 "github.com/sluice-mesh/sluice/gen/sluice/ratelimit/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/attempt"
)

func TestNewClient_RefusesMissingDependencies(t *testing.T) {
	t.Parallel()
	for name, remove := range map[string]func(*attempt.Deps){
		"policy": func(d *attempt.Deps) { d.Policy = nil }, "decisions": func(d *attempt.Deps) { d.Decisions = nil }, "limiter": func(d *attempt.Deps) { d.Limiter = nil },
		"journal": func(d *attempt.Deps) { d.Journal = nil }, "tracer": func(d *attempt.Deps) { d.Tracer = nil }, "log": func(d *attempt.Deps) { d.Log = nil },
	} {
		f := newFixture(t)
		remove(&f.deps)
		if _, err := attempt.NewClient(f.deps); err == nil {
			t.Errorf("without %s there is a client", name)
		}
	}
}

// The test copies an attempt and changes the copy, which must not change the original. Each attempt must have its own
// id, because the decision id is also the key of a claim.
func TestAttempt_CopiesChangeNothingInTheOriginal(t *testing.T) {
	t.Parallel()
	first := newAttempt(t, callText)
	first.Lease = &ratelimitv1.Lease{Id: "l"}
	claimed := first.WithClaim(&approvalv1.Approval{Id: "a-1", Attempt: 3})
	if claimed.ID == first.ID || claimed.Lease != nil || claimed.Claim.GetId() != "a-1" || claimed.Claim.Attempt != 3 || first.Claim != nil || first.Lease == nil {
		t.Errorf("a claim: %+v\nof %+v", claimed, first)
	}
	claimed.Lease = first.Lease
	if lost := claimed.WithoutClaim(); lost.Claim != nil || lost.Lease != nil || lost.ID != claimed.ID || claimed.Claim == nil {
		t.Errorf("without the claim: %+v", lost)
	}
	if renewed := first.WithNewID(); renewed.ID == first.ID || renewed.Lease != first.Lease || renewed.Call != first.Call {
		t.Errorf("with another id: %+v", renewed)
	}
	if a, b := attempt.NewID(), attempt.NewID(); a >= b || len(a) != 36 {
		t.Errorf("the ids %s and %s are not sorted by time", a, b)
	}
}

func TestPolicyCall_IsTheSentMessage(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]*policyv1.Call{
		callText: {Method: "tools/call", Name: "pay", ParamsJson: `{"name":"pay","arguments":{"to":"eve"}}`},
		`{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"file:///a"}}`:                                                               {Method: "resources/read", Name: "file:///a", ParamsJson: `{"uri":"file:///a"}`},
		`{"jsonrpc":"2.0","id":1,"method":"completion/complete","params":{"ref":{"type":"ref/prompt","name":"p"},"argument":{"name":"x","value":"y"}}}`: {Method: "completion/complete", Name: "p", Ref: "ref/prompt", ParamsJson: `{"ref":{"type":"ref/prompt","name":"p"},"argument":{"name":"x","value":"y"}}`},
		`{"jsonrpc":"2.0","id":1,"method":"prompts/list"}`:                                                                                              {Method: "prompts/list"},
	} {
		a := newAttempt(t, callText)
		a.Sent = parse(t, text) // after an approval, the approved message is sent instead of the received one
		want.Server, want.DefinitionDigest = "files", []byte("d")
		if diff := cmp.Diff(want, a.PolicyCall([]byte("d")), protocmp.Transform()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", text, diff)
		}
	}
}

func TestEvents_NeedsAClientThatAcceptsMessages(t *testing.T) {
	t.Parallel()
	a := newAttempt(t, callText)
	if a.Events() != nil {
		t.Error("messages are accepted without a client")
	}
	to := new(reply)
	a.Reply = to
	a.Events()([]byte("x"))
	if to.got != "x" {
		t.Errorf("the client got %q", to.got)
	}
	if at := a.Place(); at.Server != "files" || at.Transport != "tcp" || at.Version != "2025-11-25" || at.Session != "digest" {
		t.Errorf("the place is %+v", at)
	}
}

// reply is a fake [attempt.Reply] for a client that accepts messages before the answer.
type reply struct{ got string }

func (r *reply) Event(message []byte) { r.got += string(message) }
func (*reply) Hold()                  {}
func (*reply) Progress(int)           {}

func TestJudge_AsksPolicyOnBehalfOfTheCaller(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a := newAttempt(t, callText)
	a.Decision = nil
	got, refused := f.client(t).Judge(t.Context(), a)
	if refused != nil || !got.Allows() || a.Decision != nil {
		t.Fatalf("%+v, refused as %+v", got.Decision, refused)
	}
	if diff := cmp.Diff(&policyv1.DecideCallRequest{Call: a.PolicyCall(a.Definition)}, f.policy.asks[0], protocmp.Transform()); diff != "" {
		t.Errorf("policy was asked (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(caller(), f.policy.for_[0], protocmp.Transform()); diff != "" {
		t.Errorf("policy was asked for (-want +got):\n%s", diff)
	}
}

func TestJudge_RefusesWithoutPolicy(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.policy.decide = func(ctx context.Context, _ *policyv1.DecideCallRequest) (*policyv1.DecideCallResponse, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		a := newAttempt(t, callText)
		a.Decision = nil
		begin := time.Now()
		got, refused := f.client(t).Judge(t.Context(), a)
		if refused == nil || refused.Code != commonv1.Code_CODE_POLICY_UNAVAILABLE || got.Decision != nil || got.Allows() {
			t.Errorf("%+v, refused as %+v", got.Decision, refused)
		}
		if took := time.Since(begin); took != 2*time.Second || !f.logged("decision_id="+a.ID) {
			t.Errorf("the gateway waited %v, and logged %s", took, f.log.String())
		}
	})
}

// A cached decision is used only for an equal call. The comparison must include every value on which a decision can
// depend.
func TestJudge_UsesACachedDecisionOnAnEqualCallOnly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- f.deps.Decisions.Run(ctx) }()
		defer func() { cancel(); <-ended }()
		synctest.Wait() // waits until the lease is granted
		client := f.client(t)
		judge := func(change func(*attempt.Attempt)) int {
			a := newAttempt(t, callText)
			a.Decision = nil
			change(&a)
			before := f.policy.asked()
			if got, refused := client.Judge(ctx, a); refused != nil || got.Decision == nil {
				t.Fatalf("refused as %+v", refused)
			}
			return f.policy.asked() - before
		}
		judge(func(*attempt.Attempt) {})
		asked := 0
		for range 5 { // one lookup in 1000 asks policy, to compare the cached decision
			asked += judge(func(a *attempt.Attempt) {
				a.Sent = parse(t, `{"jsonrpc":"2.0","id":8,"method":"tools/call","params":{"name":"pay","arguments":{"to":"ben"}}}`)
			})
		}
		if asked > 1 {
			t.Errorf("policy was asked %d times about equal calls", asked)
		}
		for name, change := range map[string]func(*attempt.Attempt){
			"another tool": func(a *attempt.Attempt) {
				a.Sent = parse(t, `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"send"}}`)
			},
			"another method": func(a *attempt.Attempt) {
				a.Sent = parse(t, `{"jsonrpc":"2.0","id":7,"method":"prompts/get","params":{"name":"pay"}}`)
			},
			"another server":     func(a *attempt.Attempt) { a.Server = "notes" },
			"another definition": func(a *attempt.Attempt) { a.Definition = []byte{0xab, 2} },
			"another caller":     func(a *attempt.Attempt) { a.Principal.Subject = "other" },
			"a prompt": func(a *attempt.Attempt) {
				a.Sent = parse(t, `{"jsonrpc":"2.0","id":7,"method":"completion/complete","params":{"ref":{"type":"ref/prompt","name":"pay"},"argument":{"name":"x","value":"y"}}}`)
			},
			"a resource of that name": func(a *attempt.Attempt) {
				a.Sent = parse(t, `{"jsonrpc":"2.0","id":7,"method":"completion/complete","params":{"ref":{"type":"ref/resource","uri":"pay"},"argument":{"name":"x","value":"y"}}}`)
			},
		} {
			if judge(change) != 1 {
				t.Errorf("%s: the decision on another call was used", name)
			}
		}
	})
}

func TestAttest_BindsTheDecisionToAnApproval(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- f.deps.Decisions.Run(ctx) }()
		defer func() { cancel(); <-ended }()
		synctest.Wait()
		a := newAttempt(t, callText)
		for range 2 { // a cached decision is not signed, so it can't be used for an approval request
			if _, refused := f.client(t).Attest(ctx, a, []byte("new"), "a-1", 2); refused != nil {
				t.Fatalf("refused as %+v", refused)
			}
		}
		want := &policyv1.DecideCallRequest{Call: a.PolicyCall([]byte("new")), Attest: &policyv1.Attest{ServerIdentity: "https://files.example", ApprovalId: "a-1", Attempt: 2}}
		for i, got := range f.policy.asks {
			if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
				t.Errorf("request %d (-want +got):\n%s", i, diff)
			}
		}
		if len(f.policy.asks) != 2 {
			t.Errorf("policy was asked %d times", len(f.policy.asks))
		}
		f.policy.decide = func(context.Context, *policyv1.DecideCallRequest) (*policyv1.DecideCallResponse, error) {
			return nil, errors.New("x")
		}
		if resp, refused := f.client(t).Attest(ctx, a, nil, "", 0); resp != nil || refused == nil || refused.Code != commonv1.Code_CODE_POLICY_UNAVAILABLE {
			t.Errorf("without policy: %v, %+v", resp, refused)
		}
	})
}
