package pipeline_test

import (
	"context"
	"io"
	"log/slog"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/approvals"
)

// fakeApprovals is a fake approval service. A test sets its responses. As long as no response is set, the service is
// unavailable.
type fakeApprovals struct {
	approvalv1.ApprovalServiceClient

	w *testPipeline
	// view is the approval as approvers see it. votes contains the votes of the person who uses the agent. These votes
	// are accepted unless voteErr is set. If silent is true, WatchApprovals does not report them.
	view    *approvalv1.View
	votes   []approvalv1.Verdict
	voteErr error
	silent  bool
	// limitReached is true if the service refuses to show further forms to the person who uses the agent.
	limitReached bool
	// answerRequest answers RequestApproval. After that, WatchApprovals sends the approvals that the channel updates
	// contains.
	answerRequest func() (*approvalv1.RequestApprovalResponse, error)
	updates       chan *approvalv1.Approval
	answerClaim   func(*approvalv1.ClaimApprovalRequest) (*approvalv1.ClaimApprovalResponse, error)
	// beforeComplete runs before an outcome is accepted. It may be nil.
	beforeComplete func()
	// outcomes contains the outcomes that the gateway has reported. released contains the claims that it has released.
	outcomes []approvalv1.CallOutcome
	released []string
	// cancel answers the n-th CancelApproval request. If cancel is nil, the request succeeds and the approval is
	// cancelled. cancelled contains the reasons in these requests.
	cancel    func(n int) error
	cancelled []string
	renewed   []*approvalv1.RenewClaimRequest
}

func (w *testPipeline) approvalsClient(t testing.TB) *approvals.Client {
	t.Helper()
	w.approvals.w = w
	out, err := approvals.NewClient(approvals.Config{Hold: w.hold, MaxPending: 5, Execute: 5 * time.Minute, Holder: "gw"}, &w.approvals, w.meters(t), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return out
}

var errAway = status.Error(codes.Unavailable, "away")

func (p *fakeApprovals) RequestApproval(_ context.Context, req *approvalv1.RequestApprovalRequest, _ ...grpc.CallOption) (*approvalv1.RequestApprovalResponse, error) {
	if vote := req.GetSelfVote(); vote != nil {
		return p.answerVote(vote)
	}
	p.w.step("ask")
	if req.GetDecision().GetApproval() == nil {
		return nil, status.Error(codes.InvalidArgument, "APPROVAL_NOT_ASKED")
	}
	if p.answerRequest == nil {
		return nil, errAway
	}
	resp, err := p.answerRequest()
	if a := resp.GetAsked(); a != nil {
		a.Confirm = req.GetCanConfirm() && a.GetApproval().GetTerms().GetSelfConfirm() && !p.limitReached
	}
	return resp, err
}

func (p *fakeApprovals) answerVote(vote *approvalv1.SelfVote) (*approvalv1.RequestApprovalResponse, error) {
	if vote.GetApprovalId() != "a-1" {
		return nil, status.Error(codes.NotFound, "APPROVAL_UNKNOWN")
	}
	p.votes = append(p.votes, vote.GetVerdict())
	if p.voteErr != nil {
		return nil, p.voteErr
	}
	a := approvalIn(approved)
	if vote.GetVerdict() == approvalv1.Verdict_VERDICT_DENY {
		a = approvalIn(denied)
	}
	if a.Version = 2; !p.silent {
		p.updates <- a
	}
	return &approvalv1.RequestApprovalResponse{Result: &approvalv1.RequestApprovalResponse_Asked{Asked: &approvalv1.Asked{Approval: a}}}, nil
}

func (p *fakeApprovals) GetApproval(_ context.Context, req *approvalv1.GetApprovalRequest, _ ...grpc.CallOption) (*approvalv1.GetApprovalResponse, error) {
	p.w.step("get")
	if req.GetView() {
		return &approvalv1.GetApprovalResponse{Approval: approvalIn(pending), View: p.view}, nil
	}
	if req.GetApprovalId() != "a-1" {
		return nil, status.Error(codes.NotFound, "APPROVAL_UNKNOWN")
	}
	resp, err := p.answerRequest()
	return &approvalv1.GetApprovalResponse{Approval: resp.GetAsked().GetApproval()}, err
}

func (p *fakeApprovals) ClaimApproval(_ context.Context, req *approvalv1.ClaimApprovalRequest, _ ...grpc.CallOption) (*approvalv1.ClaimApprovalResponse, error) {
	p.w.step("take")
	return p.answerClaim(req)
}

func (p *fakeApprovals) CancelApproval(_ context.Context, req *approvalv1.CancelApprovalRequest, _ ...grpc.CallOption) (*approvalv1.CancelApprovalResponse, error) {
	p.w.step("cancel")
	p.cancelled = append(p.cancelled, req.GetReason())
	if p.cancel != nil {
		if err := p.cancel(len(p.cancelled)); err != nil {
			return nil, err
		}
	}
	p.answerRequest = answerStates(approvalIn(approvalv1.ApprovalState_APPROVAL_STATE_CANCELLED))
	return &approvalv1.CancelApprovalResponse{Approval: approvalIn(approvalv1.ApprovalState_APPROVAL_STATE_CANCELLED)}, nil
}

func (p *fakeApprovals) CompleteClaim(_ context.Context, req *approvalv1.CompleteClaimRequest, _ ...grpc.CallOption) (*approvalv1.CompleteClaimResponse, error) {
	if p.beforeComplete != nil {
		p.beforeComplete()
	}
	p.w.step("complete")
	p.outcomes = append(p.outcomes, req.GetOutcome())
	return &approvalv1.CompleteClaimResponse{Approval: &approvalv1.Approval{}, Completed: true}, nil
}

func (p *fakeApprovals) ReleaseClaim(_ context.Context, req *approvalv1.ReleaseClaimRequest, _ ...grpc.CallOption) (*approvalv1.ReleaseClaimResponse, error) {
	p.w.step("release")
	p.released = append(p.released, req.GetClaimId())
	return &approvalv1.ReleaseClaimResponse{Approval: &approvalv1.Approval{Claim: &approvalv1.ClaimRecord{LimitLeaseId: "lease"}}}, nil
}

func (p *fakeApprovals) RenewClaim(_ context.Context, req *approvalv1.RenewClaimRequest, _ ...grpc.CallOption) (*approvalv1.RenewClaimResponse, error) {
	p.renewed = append(p.renewed, req)
	return &approvalv1.RenewClaimResponse{}, nil
}

func (p *fakeApprovals) WatchApprovals(ctx context.Context, _ *approvalv1.WatchApprovalsRequest, _ ...grpc.CallOption) (grpc.ServerStreamingClient[approvalv1.WatchApprovalsResponse], error) {
	p.w.step("watch")
	return &approvalStream{ctx: ctx, moves: p.updates}, nil
}

type approvalStream struct {
	grpc.ClientStream

	ctx   context.Context //nolint:containedctx // the stream's context
	moves chan *approvalv1.Approval
}

func (s *approvalStream) Recv() (*approvalv1.WatchApprovalsResponse, error) {
	select {
	case <-s.ctx.Done():
		return nil, status.FromContextError(s.ctx.Err()).Err()
	case a, ok := <-s.moves:
		if !ok {
			return nil, io.EOF
		}
		return &approvalv1.WatchApprovalsResponse{Approval: a, Synced: true}, nil
	}
}

func approvalIn(state approvalv1.ApprovalState) *approvalv1.Approval {
	return &approvalv1.Approval{Id: "a-1", State: state, Code: codesByState[state], Attempt: 1, Digest: []byte{0xab}}
}

var codesByState = map[approvalv1.ApprovalState]commonv1.Code{
	pending: commonv1.Code_CODE_APPROVAL_PENDING, denied: commonv1.Code_CODE_APPROVAL_DENIED,
	approvalv1.ApprovalState_APPROVAL_STATE_CANCELLED: commonv1.Code_CODE_APPROVAL_EXPIRED,
}

const (
	pending  = approvalv1.ApprovalState_APPROVAL_STATE_PENDING
	approved = approvalv1.ApprovalState_APPROVAL_STATE_APPROVED
	denied   = approvalv1.ApprovalState_APPROVAL_STATE_DENIED
)

// answerStates returns a function that returns the given approvals one after another, and then the last one again and
// again.
func answerStates(states ...*approvalv1.Approval) func() (*approvalv1.RequestApprovalResponse, error) {
	return func() (*approvalv1.RequestApprovalResponse, error) {
		a := states[0]
		if len(states) > 1 {
			states = states[1:]
		}
		return &approvalv1.RequestApprovalResponse{Result: &approvalv1.RequestApprovalResponse_Asked{Asked: &approvalv1.Asked{Approval: a}}}, nil
	}
}
