package approval_test

import (
	"bytes"
	"context"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/binding"
	"github.com/sluice-mesh/sluice/services/internal/signeddecision"
)

// forgery describes one way in which a compromised gateway sends a decision that the policy service did not sign for
// the request.
type forgery struct {
	// changeStatement changes the statement before the policy service signs it. tamper changes the signed decision that
	// the gateway sends.
	changeStatement func(*policyv1.DecisionStatement)
	tamper          func(*policyv1.SignedDecision)
	// changeUnsigned changes the unsigned decision in the request.
	changeUnsigned func(*policyv1.Decision)
	code           codes.Code
	reason         string
}

func wantRefused(f forgery) forgery {
	f.code, f.reason = codes.InvalidArgument, "DECISION_REFUSED"
	return f
}
func wantStale(f forgery) forgery {
	f.code, f.reason = codes.FailedPrecondition, "DECISION_STALE"
	return f
}

func signsOther(f func(*policyv1.DecisionStatement)) forgery {
	return wantRefused(forgery{changeStatement: f})
}

func forPrincipal(change func(*identityv1.Principal)) forgery {
	who := bot()
	change(who)
	return signsOther(func(s *policyv1.DecisionStatement) { s.PrincipalDigest = signeddecision.PrincipalDigest(who) })
}

func forCall(change func(*policyv1.Call)) forgery {
	call := bound(params).GetCall()
	change(call)
	digest, err := binding.DigestIgnoringDefinition(bot(), call)
	if err != nil {
		panic(err)
	}
	return signsOther(func(s *policyv1.DecisionStatement) { s.CallDigest = digest[:] })
}

func signedAgo(ago time.Duration) func(*policyv1.DecisionStatement) {
	return func(s *policyv1.DecisionStatement) { s.Time = timestamppb.New(time.Now().Add(-ago)) }
}

// forgeries returns, by name, the forgeries that the service must refuse in a request for an approval and in a claim.
// The parameter before must be a time before the start of the service.
func forgeries(t *testing.T, before time.Time) map[string]forgery {
	t.Helper()
	other := newFakePolicy(t)
	return map[string]forgery{
		"none":                wantRefused(forgery{tamper: func(s *policyv1.SignedDecision) { proto.Reset(s) }}),
		"no signature":        wantRefused(forgery{tamper: func(s *policyv1.SignedDecision) { s.Signature = nil }}),
		"a flipped signature": wantRefused(forgery{tamper: func(s *policyv1.SignedDecision) { s.Signature[0] ^= 1 }}),
		"a flipped statement": wantRefused(forgery{tamper: func(s *policyv1.SignedDecision) { s.Statement[len(s.GetStatement())-1] ^= 1 }}),
		"another key":         wantRefused(forgery{tamper: func(s *policyv1.SignedDecision) { resign(t, other, s) }}),
		"an empty statement":  wantRefused(forgery{tamper: func(s *policyv1.SignedDecision) { s.Statement = nil }}),
		"other terms":         wantRefused(forgery{changeUnsigned: func(d *policyv1.Decision) { d.Approval.Approvers = []string{"agents"} }}),
		"a grant":             wantRefused(forgery{changeUnsigned: func(d *policyv1.Decision) { d.Approval.Grant = &policyv1.Grant{Calls: 9} }}),
		"self_confirm":        wantRefused(forgery{changeUnsigned: func(d *policyv1.Decision) { d.Approval.SelfConfirm = true }}),
		"approve_with": wantRefused(forgery{changeUnsigned: func(d *policyv1.Decision) {
			d.Approval.ApproveWith = &policyv1.StepUp{AcrValues: []string{"phr"}}
		}}),
		"no approve_with": wantRefused(forgery{changeStatement: func(s *policyv1.DecisionStatement) {
			s.Decision.Approval.ApproveWith = &policyv1.StepUp{AcrValues: []string{"phr"}}
		}}),
		"another rule":          wantRefused(forgery{changeUnsigned: func(d *policyv1.Decision) { d.RuleDigest = bytes.Repeat([]byte{7}, 32) }}),
		"another revision":      wantRefused(forgery{changeUnsigned: func(d *policyv1.Decision) { d.PolicyRevision = "r2" }}),
		"another effect":        wantRefused(forgery{changeUnsigned: func(d *policyv1.Decision) { d.Effect = policyv1.Effect_EFFECT_ALLOW }, changeStatement: nothingElse}),
		"idempotent":            wantRefused(forgery{changeUnsigned: func(d *policyv1.Decision) { d.Idempotent = true }}),
		"no decision":           signsOther(func(s *policyv1.DecisionStatement) { s.Decision = nil }),
		"another tenant":        forPrincipal(func(p *identityv1.Principal) { p.Tenant = "acme" }),
		"another subject":       forPrincipal(func(p *identityv1.Principal) { p.Subject = "bot2" }),
		"another agent":         forPrincipal(func(p *identityv1.Principal) { p.Agent = "prod" }),
		"another owner":         forPrincipal(func(p *identityv1.Principal) { p.Owner = "" }),
		"other groups":          forPrincipal(func(p *identityv1.Principal) { p.Groups = []string{"trusted"} }),
		"another chain":         forPrincipal(func(p *identityv1.Principal) { p.Chain = []*identityv1.Principal{{Tenant: "default", Subject: "x"}} }),
		"other arguments":       forCall(func(c *policyv1.Call) { c.ParamsJson = `{"name":"refund","arguments":{"sum":1}}` }),
		"another tool":          forCall(func(c *policyv1.Call) { c.Name = "look" }),
		"another server":        forCall(func(c *policyv1.Call) { c.Server = "pay2" }),
		"another method":        forCall(func(c *policyv1.Call) { c.Method = "prompts/get" }),
		"no call":               signsOther(func(s *policyv1.DecisionStatement) { s.CallDigest = nil }),
		"another identity":      signsOther(func(s *policyv1.DecisionStatement) { s.ServerIdentity = "http http://else/mcp" }),
		"another definition":    signsOther(func(s *policyv1.DecisionStatement) { s.DefinitionDigest = bytes.Repeat([]byte{7}, 32) }),
		"another approval":      signsOther(func(s *policyv1.DecisionStatement) { s.ApprovalId = "a-1" }),
		"another attempt":       signsOther(func(s *policyv1.DecisionStatement) { s.Attempt += 7 }),
		"6 s old":               wantStale(forgery{changeStatement: signedAgo(6 * time.Second)}),
		"3 s ahead":             wantStale(forgery{changeStatement: signedAgo(-3 * time.Second)}),
		"from before the start": wantStale(forgery{changeStatement: func(s *policyv1.DecisionStatement) { s.Time = timestamppb.New(before) }}),
		"of an older revision": wantStale(forgery{
			changeUnsigned:  func(d *policyv1.Decision) { d.PolicyRevision = "r0" },
			changeStatement: func(s *policyv1.DecisionStatement) { s.Decision.PolicyRevision, s.Activation = "r0", "a-r0" },
		}),
	}
}

func nothingElse(*policyv1.DecisionStatement) {}

func resign(t *testing.T, j *fakePolicy, s *policyv1.SignedDecision) {
	t.Helper()
	statement := new(policyv1.DecisionStatement)
	if err := proto.Unmarshal(s.GetStatement(), statement); err != nil {
		t.Fatal(err)
	}
	again, err := j.signer.Sign(statement)
	if err != nil {
		t.Fatal(err)
	}
	proto.Reset(s)
	proto.Merge(s, again)
}

// make returns the decision and the signed decision that a gateway sends. The function use sets the statement fields
// that depend on the request, before the policy service signs the statement.
func (f *forgery) make(t *testing.T, s *fixture, use func(*policyv1.DecisionStatement)) (*policyv1.Decision, *policyv1.SignedDecision) {
	t.Helper()
	change := []func(*policyv1.DecisionStatement){use}
	if f.changeStatement != nil {
		change = append(change, f.changeStatement)
	}
	signed := s.policy.sign(t, bot(), bound(params).GetCall(), decision(), change...)
	if f.tamper != nil {
		f.tamper(signed)
	}
	said := decision()
	if f.changeUnsigned != nil {
		f.changeUnsigned(said)
	}
	return said, signed
}

// Case I5. The service accepts only a current decision that the policy service signed for this request, and accepts it
// once. It ignores the unsigned decision in a gateway's request.
func TestDecisionVerifier_RefusesForgedDecisions(t *testing.T) {
	t.Parallel()
	before := time.Now()
	s := serveOnDisk(t)
	direct := approvalv1.NewApprovalServiceClient(s.Gateway())
	asks := func(st *policyv1.DecisionStatement) { st.ServerIdentity = bound(params).GetServerIdentity() }
	request := func(ctx context.Context, d *policyv1.Decision, signed *policyv1.SignedDecision) error {
		_, err := direct.RequestApproval(ctx, &approvalv1.RequestApprovalRequest{Bound: bound(params), Decision: d, DecisionId: "d", SignedDecision: signed})
		return err
	}
	all := forgeries(t, before)
	for name, f := range all {
		if name == "another effect" {
			continue // an earlier check refuses a decision that does not require approval
		}
		d, signed := f.make(t, s, asks)
		if err := request(onBehalfOf(t, bot()), d, signed); err == nil {
			t.Errorf("asked with %s", name)
		} else {
			wantError(t, err, f.code, f.reason)
		}
	}
	if n := s.count(t); n != 0 {
		t.Fatalf("%d approvals were opened", n)
	}
	a := s.ask(t, params).GetApproval()
	s.approve(t, "ana", a.GetId())
	a = s.get(t, a.GetId())
	claims := func(st *policyv1.DecisionStatement) {
		asks(st)
		st.ApprovalId, st.Attempt = a.GetId(), a.GetAttempt()
	}
	for name, f := range all {
		d, signed := f.make(t, s, claims)
		_, err := direct.ClaimApproval(onBehalfOf(t, bot()), claimRequest(a, "c1", func(r *approvalv1.ClaimApprovalRequest) { r.Decision, r.SignedDecision = d, signed }))
		if err == nil {
			t.Errorf("claimed with %s", name)
		} else {
			wantError(t, err, f.code, f.reason)
		}
	}
	question, claim := new(forgery), new(forgery)
	_, signed := question.make(t, s, asks)
	_, err := direct.ClaimApproval(onBehalfOf(t, bot()), claimRequest(a, "c1", func(r *approvalv1.ClaimApprovalRequest) { r.SignedDecision = signed }))
	wantError(t, err, codes.InvalidArgument, "DECISION_REFUSED")
	if is := s.get(t, a.GetId()); is.GetVersion() != a.GetVersion() {
		t.Errorf("a refused claim moved the approval: %v", is)
	}
	d, good := claim.make(t, s, claims)
	for n := range 2 {
		resp, err := direct.ClaimApproval(onBehalfOf(t, bot()), claimRequest(a, "c1", func(r *approvalv1.ClaimApprovalRequest) { r.Decision, r.SignedDecision = d, good }))
		if n == 0 && (err != nil || resp.GetClaimed() == nil) {
			t.Errorf("the decision that policy signed: %v, %v", resp, err)
		}
		if n == 1 {
			wantError(t, err, codes.FailedPrecondition, "DECISION_STALE")
		}
	}
}

// Case I5. The service has received revision r2. It accepts decisions of r2 with any activation, and decisions of a
// later revision. It refuses decisions of earlier revisions.
func TestDecisionVerifier_RefusesDecisionsOfEarlierRevisions(t *testing.T) {
	t.Parallel()
	s := serveOnDisk(t)
	s.policy.activate(t, s.svc, &policyv1.Revision{Id: "r2", Activation: "d-r2", Active: true})
	for _, tt := range []struct {
		id, activation string
		stale          bool
	}{{"r2", "d-r2", false}, {"r2", "a-r2", false}, {"r1", "b-r1", true}, {"r1", "d-r1", true}, {"", "", true}, {"r3", "e-r3", false}} {
		d := decision(func(d *policyv1.Decision) { d.PolicyRevision = tt.id })
		signed := s.policy.sign(t, bot(), bound(params).GetCall(), d, func(st *policyv1.DecisionStatement) {
			st.ServerIdentity, st.Activation = bound(params).GetServerIdentity(), tt.activation
		})
		_, err := approvalv1.NewApprovalServiceClient(s.Gateway()).RequestApproval(onBehalfOf(t, bot()), &approvalv1.RequestApprovalRequest{Bound: bound(params), Decision: d, DecisionId: "d", SignedDecision: signed})
		if !tt.stale && err != nil {
			t.Errorf("%s: %v", tt.activation, err)
		}
		if tt.stale {
			wantError(t, err, codes.FailedPrecondition, "DECISION_STALE")
		}
	}
}

// Case I5. Until the service has received an active revision, it refuses requests and reports that it is not healthy.
func TestDecisionVerifier_RefusesDecisionsBeforeTheFirstRevision(t *testing.T) {
	t.Parallel()
	cfg, j := approvalConfig(t), newFakePolicy(t)
	s := serveWith(t, cfg, j)
	if err := s.svc.Health(t.Context()); err == nil {
		t.Error("the service reports that it is healthy")
	}
	_, err := s.gateway().RequestApproval(authn.OnBehalfOf(timeoutContext(t), bot()), &approvalv1.RequestApprovalRequest{Bound: bound(params), Decision: decision(), DecisionId: "d"})
	wantError(t, err, codes.Unavailable, "POLICY_UNSEEN")
}
