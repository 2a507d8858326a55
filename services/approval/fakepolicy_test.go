package approval_test

import (
	"context"
	"io"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/approval"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/binding"
	"github.com/sluice-mesh/sluice/services/internal/signeddecision"
)

// fakePolicy is a fake policy service. It sends the revisions that the test activates, and signs every decision.
type fakePolicy struct {
	policyv1.PolicyServiceClient

	signer   *signeddecision.Signer
	verifier *signeddecision.Verifier
	active   chan *policyv1.Revision
}

func active() *policyv1.Revision {
	return &policyv1.Revision{Id: "r1", Activation: "b-r1", Active: true}
}

func newFakePolicy(t *testing.T) *fakePolicy {
	t.Helper()
	signer, verifier, err := signeddecision.NewLocalPair()
	if err != nil {
		t.Fatal(err)
	}
	return &fakePolicy{signer: signer, verifier: verifier, active: make(chan *policyv1.Revision)}
}

func (j *fakePolicy) deps(d approval.Deps) approval.Deps {
	d.Policy, d.Verifier = j, j.verifier
	return d
}

// start makes a service watch the revisions. It returns when the service has received the first revision.
func (j *fakePolicy) start(t *testing.T, svc *approval.Service) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background()) //nolint:usetesting // it is cancelled in the clean-up
	done := make(chan struct{})
	go func() { defer close(done); svc.WatchPolicy(ctx) }()
	t.Cleanup(func() { stop(); <-done })
	j.activate(t, svc, active())
}

// activate sends a revision. It returns when the service has handled the revision.
func (j *fakePolicy) activate(t *testing.T, svc *approval.Service, r *policyv1.Revision) {
	t.Helper()
	for range 2 { // when the service receives the second message, it has handled the first
		select {
		case j.active <- r:
		case <-timeoutContext(t).Done():
			t.Fatal("no stream of revisions is open")
		}
	}
	if err := svc.Health(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// WatchRevision implements policyv1.PolicyServiceClient.
func (j *fakePolicy) WatchRevision(ctx context.Context, _ *policyv1.WatchRevisionRequest, _ ...grpc.CallOption) (grpc.ServerStreamingClient[policyv1.WatchRevisionResponse], error) {
	return &revisionStream{ctx: ctx, policy: j}, nil
}

type revisionStream struct {
	grpc.ClientStream

	ctx    context.Context //nolint:containedctx // the context of the stream
	policy *fakePolicy
}

func (s *revisionStream) Recv() (*policyv1.WatchRevisionResponse, error) {
	select {
	case r := <-s.policy.active:
		return &policyv1.WatchRevisionResponse{Revision: r}, nil
	case <-s.ctx.Done():
		return nil, io.EOF
	}
}

// sign signs a decision on a call. The change functions modify the statement before it is signed.
func (j *fakePolicy) sign(t *testing.T, who *identityv1.Principal, call *policyv1.Call, d *policyv1.Decision, change ...func(*policyv1.DecisionStatement)) *policyv1.SignedDecision {
	t.Helper()
	out, err := j.signStatement(who, call, d, change...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func (j *fakePolicy) signStatement(who *identityv1.Principal, call *policyv1.Call, d *policyv1.Decision, change ...func(*policyv1.DecisionStatement)) (*policyv1.SignedDecision, error) {
	digest, _ := binding.DigestIgnoringDefinition(who, call) // empty if the params are invalid
	s := &policyv1.DecisionStatement{
		CallDigest: digest[:], PrincipalDigest: signeddecision.PrincipalDigest(who), DefinitionDigest: call.GetDefinitionDigest(),
		Decision: proto.CloneOf(d), Activation: "c-later than all", Time: timestamppb.New(time.Now()),
	}
	for _, f := range change {
		f(s)
	}
	return j.signer.Sign(s)
}

// signingClient is the client of a gateway. It adds to each request a decision that the policy service signed for the
// request.
type signingClient struct {
	approvalv1.ApprovalServiceClient

	fixture *fixture
}

// RequestApproval implements approvalv1.ApprovalServiceClient.
func (h signingClient) RequestApproval(ctx context.Context, req *approvalv1.RequestApprovalRequest, opts ...grpc.CallOption) (*approvalv1.RequestApprovalResponse, error) {
	if signed, err := h.fixture.policy.signStatement(authn.PrincipalOf(ctx), req.GetBound().GetCall(), req.GetDecision(), func(s *policyv1.DecisionStatement) {
		s.ServerIdentity, s.ApprovalId = req.GetBound().GetServerIdentity(), req.GetSelfVote().GetApprovalId()
	}); err == nil {
		req = proto.CloneOf(req)
		req.SignedDecision = signed
	}
	resp, err := h.ApprovalServiceClient.RequestApproval(ctx, req, opts...)
	if a := resp.GetAsked(); a != nil {
		h.fixture.calls.Store(a.GetApproval().GetId(), req.GetBound().GetCall())
	}
	return resp, err
}

// ClaimApproval implements approvalv1.ApprovalServiceClient.
func (h signingClient) ClaimApproval(ctx context.Context, req *approvalv1.ClaimApprovalRequest, opts ...grpc.CallOption) (*approvalv1.ClaimApprovalResponse, error) {
	req = proto.CloneOf(req)
	call, _ := h.fixture.calls.Load(req.GetApprovalId())
	known, ok := call.(*policyv1.Call)
	if !ok {
		known = bound(params).GetCall()
	}
	signed, err := h.fixture.policy.signStatement(authn.PrincipalOf(ctx), known, req.GetDecision(), func(s *policyv1.DecisionStatement) {
		s.ServerIdentity, s.DefinitionDigest = req.GetServerIdentity(), req.GetDefinitionDigest()
		s.ApprovalId, s.Attempt = req.GetApprovalId(), req.GetAttempt()
	})
	if err != nil {
		return nil, err
	}
	req.SignedDecision = signed
	return h.ApprovalServiceClient.ClaimApproval(ctx, req, opts...)
}
