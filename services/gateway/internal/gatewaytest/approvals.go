package gatewaytest

import (
	"context"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
)

// Approvals is a fake approval service that has at most one approval. The approval belongs to the caller ana.
type Approvals struct {
	approvalv1.ApprovalServiceClient

	// Claim returns the response to a claim. If it is nil, each claim fails with an error that does not say whether the
	// approval was claimed.
	Claim func(*approvalv1.ClaimApprovalRequest) *approvalv1.ClaimApprovalResponse
	// Confirms is true if the fake service allows the gateway to ask the user to confirm a call.
	Confirms bool

	mu        sync.Mutex
	approval  *approvalv1.Approval
	changed   chan struct{} // closed when the approval changes
	requests  []*approvalv1.RequestApprovalRequest
	cancelled []string
}

// Set replaces the approval, or removes it if the argument is nil. Clients that watch the approval receive the change.
func (a *Approvals) Set(approval *approvalv1.Approval) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.approval = approval
	if a.changed != nil {
		close(a.changed)
		a.changed = nil
	}
}

// SetState sets the approval's state.
func (a *Approvals) SetState(state approvalv1.ApprovalState) {
	approval, _ := a.get()
	approval = proto.CloneOf(approval)
	approval.State = state
	a.Set(approval)
}

// Requests returns the approval requests that the fake service has received.
func (a *Approvals) Requests() []*approvalv1.RequestApprovalRequest {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.requests)
}

// SelfVotes returns the votes that users of clients have cast on their own calls.
func (a *Approvals) SelfVotes() (out []*approvalv1.SelfVote) {
	for _, r := range a.Requests() {
		if vote := r.GetSelfVote(); vote != nil {
			out = append(out, vote)
		}
	}
	return out
}

// Cancelled returns the ids of the approvals that were cancelled.
func (a *Approvals) Cancelled() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.cancelled)
}

// get returns the approval, and a channel that is closed when the approval changes.
func (a *Approvals) get() (*approvalv1.Approval, <-chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.changed == nil {
		a.changed = make(chan struct{})
	}
	return a.approval, a.changed
}

// GetApproval implements approvalv1.ApprovalServiceClient.
func (a *Approvals) GetApproval(ctx context.Context, r *approvalv1.GetApprovalRequest, _ ...grpc.CallOption) (*approvalv1.GetApprovalResponse, error) {
	approval, _ := a.get()
	if approval == nil || r.GetApprovalId() != approval.GetId() || authn.PrincipalOf(ctx).GetSubject() != "ana" {
		return nil, status.Error(codes.NotFound, "APPROVAL_UNKNOWN")
	}
	return &approvalv1.GetApprovalResponse{Approval: approval, View: &approvalv1.View{Server: "files", Name: approval.GetName(), Params: "{}"}}, nil
}

// RequestApproval implements approvalv1.ApprovalServiceClient.
func (a *Approvals) RequestApproval(_ context.Context, r *approvalv1.RequestApprovalRequest, _ ...grpc.CallOption) (*approvalv1.RequestApprovalResponse, error) {
	a.mu.Lock()
	a.requests = append(a.requests, r)
	a.mu.Unlock()
	approval, _ := a.get()
	return &approvalv1.RequestApprovalResponse{Result: &approvalv1.RequestApprovalResponse_Asked{Asked: &approvalv1.Asked{Approval: approval, Confirm: a.Confirms && r.GetCanConfirm()}}}, nil
}

// ClaimApproval implements approvalv1.ApprovalServiceClient.
func (a *Approvals) ClaimApproval(_ context.Context, r *approvalv1.ClaimApprovalRequest, _ ...grpc.CallOption) (*approvalv1.ClaimApprovalResponse, error) {
	a.mu.Lock()
	claim := a.Claim
	a.mu.Unlock()
	if claim == nil {
		return nil, status.Error(codes.Internal, "x")
	}
	return claim(r), nil
}

// CompleteClaim implements approvalv1.ApprovalServiceClient.
func (*Approvals) CompleteClaim(context.Context, *approvalv1.CompleteClaimRequest, ...grpc.CallOption) (*approvalv1.CompleteClaimResponse, error) {
	return nil, status.Error(codes.Internal, "x")
}

// ReleaseClaim implements approvalv1.ApprovalServiceClient.
func (*Approvals) ReleaseClaim(context.Context, *approvalv1.ReleaseClaimRequest, ...grpc.CallOption) (*approvalv1.ReleaseClaimResponse, error) {
	return nil, status.Error(codes.Internal, "x")
}

// CancelApproval implements approvalv1.ApprovalServiceClient.
func (a *Approvals) CancelApproval(_ context.Context, r *approvalv1.CancelApprovalRequest, _ ...grpc.CallOption) (*approvalv1.CancelApprovalResponse, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.cancelled = append(a.cancelled, r.GetApprovalId())
	return new(approvalv1.CancelApprovalResponse), nil
}

// WatchApprovals implements approvalv1.ApprovalServiceClient.
func (a *Approvals) WatchApprovals(ctx context.Context, _ *approvalv1.WatchApprovalsRequest, _ ...grpc.CallOption) (grpc.ServerStreamingClient[approvalv1.WatchApprovalsResponse], error) {
	_, changed := a.get()
	return &approvalStream{ctx: ctx, of: a, changed: changed}, nil
}

type approvalStream struct {
	grpc.ClientStream

	ctx     context.Context //nolint:containedctx // the stream's context
	of      *Approvals
	changed <-chan struct{}
}

// Recv implements grpc.ServerStreamingClient.
func (s *approvalStream) Recv() (*approvalv1.WatchApprovalsResponse, error) {
	select {
	case <-s.ctx.Done():
		return nil, s.ctx.Err()
	case <-s.changed:
	}
	var approval *approvalv1.Approval
	approval, s.changed = s.of.get()
	return &approvalv1.WatchApprovalsResponse{Approval: approval}, nil
}

// RequireApproval makes the fake policy service require an approval for each call. It also creates a pending approval,
// with the id a-1, for calls to the given tool.
func (g *Gateway) RequireApproval(tool string) {
	terms := &policyv1.ApprovalTerms{Quorum: 1}
	g.Policy.Change(func() {
		g.Policy.Decision = &policyv1.Decision{Effect: policyv1.Effect_EFFECT_REQUIRE_APPROVAL, Approval: terms}
	})
	g.Approvals.Set(&approvalv1.Approval{
		Id: "a-1", State: approvalv1.ApprovalState_APPROVAL_STATE_PENDING, Server: "files", Method: "tools/call", Name: tool, Terms: terms,
		DecideBefore: timestamppb.New(time.Now().Add(time.Hour)),
	})
}

// Approve sets the approval's state to approved. After that, claims succeed, and the claimed call has the given params.
func (g *Gateway) Approve(params string) {
	g.Approvals.mu.Lock()
	g.Approvals.Claim = func(*approvalv1.ClaimApprovalRequest) *approvalv1.ClaimApprovalResponse {
		approval, _ := g.Approvals.get()
		bound := &approvalv1.BoundCall{Call: &policyv1.Call{Method: approval.GetMethod(), ParamsJson: params}}
		return &approvalv1.ClaimApprovalResponse{Result: &approvalv1.ClaimApprovalResponse_Claimed{Claimed: &approvalv1.Claimed{Approval: approval, Bound: bound}}}
	}
	g.Approvals.mu.Unlock()
	g.Approvals.SetState(approvalv1.ApprovalState_APPROVAL_STATE_APPROVED)
}
