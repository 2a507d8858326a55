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

// forgery is one way in which a compromised gateway sends a decision that policy did not sign for the request.
type forgery struct {
	// signed changes what policy signs, and brought changes the signed decision that the gateway sends.
	signed  func(*policyv1.DecisionStatement)
	brought func(*policyv1.SignedDecision)
	// said changes the unsigned decision in the request.
	said func(*policyv1.Decision)
	code codes.Code
	why  string
}

func refuses(f forgery) forgery { f.code, f.why = codes.InvalidArgument, "DECISION_REFUSED"; return f }
func isStale(f forgery) forgery { f.code, f.why = codes.FailedPrecondition, "DECISION_STALE"; return f }

func signs(f func(*policyv1.DecisionStatement)) forgery { return refuses(forgery{signed: f}) }

// ofWho returns a forgery with a signature for another principal.
func ofWho(change func(*identityv1.Principal)) forgery {
	who := bot()
	change(who)
	return signs(func(s *policyv1.DecisionStatement) { s.PrincipalDigest = signeddecision.PrincipalDigest(who) })
}

// ofText returns a forgery with a signature for another call.
func ofText(change func(*policyv1.Call)) forgery {
	call := bound(params).GetCall()
	change(call)
	digest, err := binding.DigestIgnoringDefinition(bot(), call)
	if err != nil {
		panic(err)
	}
	return signs(func(s *policyv1.DecisionStatement) { s.CallDigest = digest[:] })
}

func at(ago time.Duration) func(*policyv1.DecisionStatement) {
	return func(s *policyv1.DecisionStatement) { s.Time = timestamppb.New(time.Now().Add(-ago)) }
}

// forgeries returns the forgeries that a request and a claim must both refuse, by name.
func forgeries(t *testing.T) map[string]forgery {
	t.Helper()
	other := judges(t)
	return map[string]forgery{
		"none":                  refuses(forgery{brought: func(s *policyv1.SignedDecision) { proto.Reset(s) }}),
		"no signature":          refuses(forgery{brought: func(s *policyv1.SignedDecision) { s.Signature = nil }}),
		"a flipped signature":   refuses(forgery{brought: func(s *policyv1.SignedDecision) { s.Signature[0] ^= 1 }}),
		"a flipped statement":   refuses(forgery{brought: func(s *policyv1.SignedDecision) { s.Statement[len(s.GetStatement())-1] ^= 1 }}),
		"another key":           refuses(forgery{brought: func(s *policyv1.SignedDecision) { resign(t, other, s) }}),
		"an empty statement":    refuses(forgery{brought: func(s *policyv1.SignedDecision) { s.Statement = nil }}),
		"other terms":           refuses(forgery{said: func(d *policyv1.Decision) { d.Approval.Approvers = []string{"agents"} }}),
		"a grant":               refuses(forgery{said: func(d *policyv1.Decision) { d.Approval.Grant = &policyv1.Grant{Calls: 9} }}),
		"self_confirm":          refuses(forgery{said: func(d *policyv1.Decision) { d.Approval.SelfConfirm = true }}),
		"another rule":          refuses(forgery{said: func(d *policyv1.Decision) { d.RuleDigest = bytes.Repeat([]byte{7}, 32) }}),
		"another revision":      refuses(forgery{said: func(d *policyv1.Decision) { d.PolicyRevision = "r2" }}),
		"another effect":        refuses(forgery{said: func(d *policyv1.Decision) { d.Effect = policyv1.Effect_EFFECT_ALLOW }, signed: nothingElse}),
		"idempotent":            refuses(forgery{said: func(d *policyv1.Decision) { d.Idempotent = true }}),
		"no decision":           signs(func(s *policyv1.DecisionStatement) { s.Decision = nil }),
		"another tenant":        ofWho(func(p *identityv1.Principal) { p.Tenant = "acme" }),
		"another subject":       ofWho(func(p *identityv1.Principal) { p.Subject = "bot2" }),
		"another agent":         ofWho(func(p *identityv1.Principal) { p.Agent = "prod" }),
		"another owner":         ofWho(func(p *identityv1.Principal) { p.Owner = "" }),
		"other groups":          ofWho(func(p *identityv1.Principal) { p.Groups = []string{"trusted"} }),
		"another chain":         ofWho(func(p *identityv1.Principal) { p.Chain = []*identityv1.Principal{{Tenant: "default", Subject: "x"}} }),
		"other arguments":       ofText(func(c *policyv1.Call) { c.ParamsJson = `{"name":"refund","arguments":{"sum":1}}` }),
		"another tool":          ofText(func(c *policyv1.Call) { c.Name = "look" }),
		"another server":        ofText(func(c *policyv1.Call) { c.Server = "pay2" }),
		"another method":        ofText(func(c *policyv1.Call) { c.Method = "prompts/get" }),
		"no call":               signs(func(s *policyv1.DecisionStatement) { s.CallDigest = nil }),
		"another identity":      signs(func(s *policyv1.DecisionStatement) { s.ServerIdentity = "http http://else/mcp" }),
		"another definition":    signs(func(s *policyv1.DecisionStatement) { s.DefinitionDigest = bytes.Repeat([]byte{7}, 32) }),
		"another approval":      signs(func(s *policyv1.DecisionStatement) { s.ApprovalId = "a-1" }),
		"another attempt":       signs(func(s *policyv1.DecisionStatement) { s.Attempt += 7 }),
		"6 s old":               isStale(forgery{signed: at(6 * time.Second)}),
		"3 s ahead":             isStale(forgery{signed: at(-3 * time.Second)}),
		"from before the start": isStale(forgery{signed: at(4 * time.Second)}),
		"of an older revision": isStale(forgery{
			said:   func(d *policyv1.Decision) { d.PolicyRevision = "r0" },
			signed: func(s *policyv1.DecisionStatement) { s.Decision.PolicyRevision, s.Activation = "r0", "a-r0" },
		}),
	}
}

func nothingElse(*policyv1.DecisionStatement) {}

func resign(t *testing.T, j *judge, s *policyv1.SignedDecision) {
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

// make returns the decision and the signed decision that a gateway sends. use sets the fields of the statement that policy
// signs for the request.
func (f *forgery) make(t *testing.T, s *site, use func(*policyv1.DecisionStatement)) (*policyv1.Decision, *policyv1.SignedDecision) {
	t.Helper()
	change := []func(*policyv1.DecisionStatement){use}
	if f.signed != nil {
		change = append(change, f.signed)
	}
	signed := s.policy.sign(t, bot(), bound(params).GetCall(), decision(), change...)
	if f.brought != nil {
		f.brought(signed)
	}
	said := decision()
	if f.said != nil {
		f.said(said)
	}
	return said, signed
}

// Case I5. The service accepts only a current decision that policy signed for this request, and accepts it once. The
// unsigned decision in a gateway's request does not count.
func TestI5TheGatewaysWordIsNoDecision(t *testing.T) {
	t.Parallel()
	s := serveOnDisk(t)
	direct := approvalv1.NewApprovalServiceClient(s.Gateway())
	asks := func(st *policyv1.DecisionStatement) { st.ServerIdentity = bound(params).GetServerIdentity() }
	request := func(ctx context.Context, d *policyv1.Decision, signed *policyv1.SignedDecision) error {
		_, err := direct.RequestApproval(ctx, &approvalv1.RequestApprovalRequest{Bound: bound(params), Decision: d, DecisionId: "d", SignedDecision: signed})
		return err
	}
	all := forgeries(t)
	for name, f := range all {
		if name == "another effect" {
			continue // a decision that requires no approval is refused earlier
		}
		d, signed := f.make(t, s, asks)
		if err := request(as(t, bot()), d, signed); err == nil {
			t.Errorf("asked with %s", name)
		} else {
			wanted(t, err, f.code, f.why)
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
		_, err := direct.ClaimApproval(as(t, bot()), claimRequest(a, "c1", func(r *approvalv1.ClaimApprovalRequest) { r.Decision, r.SignedDecision = d, signed }))
		if err == nil {
			t.Errorf("claimed with %s", name)
		} else {
			wanted(t, err, f.code, f.why)
		}
	}
	question, claim := new(forgery), new(forgery)
	_, signed := question.make(t, s, asks)
	_, err := direct.ClaimApproval(as(t, bot()), claimRequest(a, "c1", func(r *approvalv1.ClaimApprovalRequest) { r.SignedDecision = signed }))
	wanted(t, err, codes.InvalidArgument, "DECISION_REFUSED")
	if is := s.get(t, a.GetId()); is.GetVersion() != a.GetVersion() {
		t.Errorf("a refused claim moved the approval: %v", is)
	}
	d, good := claim.make(t, s, claims)
	for n := range 2 {
		resp, err := direct.ClaimApproval(as(t, bot()), claimRequest(a, "c1", func(r *approvalv1.ClaimApprovalRequest) { r.Decision, r.SignedDecision = d, good }))
		if n == 0 && (err != nil || resp.GetClaimed() == nil) {
			t.Errorf("the decision that policy signed: %v, %v", resp, err)
		}
		if n == 1 {
			wanted(t, err, codes.FailedPrecondition, "DECISION_STALE")
		}
	}
}

// Case I5. The service accepts decisions of the last revision that it saw, with any activation, and of later revisions. It
// refuses decisions of earlier revisions.
func TestI5RevisionsAreNoOlderThanWasShown(t *testing.T) {
	t.Parallel()
	s := serveOnDisk(t)
	s.policy.show(t, s.svc, &policyv1.Revision{Id: "r2", Activation: "d-r2", Active: true})
	for _, tt := range []struct {
		id, activation string
		stale          bool
	}{{"r2", "d-r2", false}, {"r2", "a-r2", false}, {"r1", "b-r1", true}, {"r1", "d-r1", true}, {"", "", true}, {"r3", "e-r3", false}} {
		d := decision(func(d *policyv1.Decision) { d.PolicyRevision = tt.id })
		signed := s.policy.sign(t, bot(), bound(params).GetCall(), d, func(st *policyv1.DecisionStatement) {
			st.ServerIdentity, st.Activation = bound(params).GetServerIdentity(), tt.activation
		})
		_, err := approvalv1.NewApprovalServiceClient(s.Gateway()).RequestApproval(as(t, bot()), &approvalv1.RequestApprovalRequest{Bound: bound(params), Decision: d, DecisionId: "d", SignedDecision: signed})
		if !tt.stale && err != nil {
			t.Errorf("%s: %v", tt.activation, err)
		}
		if tt.stale {
			wanted(t, err, codes.FailedPrecondition, "DECISION_STALE")
		}
	}
}

// Case I5. Until the service has seen an active revision, it refuses requests and reports that it is not healthy.
func TestI5NothingIsAcceptedBeforeARevisionWasSeen(t *testing.T) {
	t.Parallel()
	cfg, j := approvalConfig(t), judges(t)
	s := serveWith(t, cfg, j)
	if err := s.svc.Health(t.Context()); err == nil {
		t.Error("the service reports that it is healthy")
	}
	_, err := s.gateway().RequestApproval(authn.OnBehalfOf(soon(t), bot()), &approvalv1.RequestApprovalRequest{Bound: bound(params), Decision: decision(), DecisionId: "d"})
	wanted(t, err, codes.Unavailable, "POLICY_UNSEEN")
}
