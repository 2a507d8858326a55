package gateway

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/rpc"
)

var (
	errNoApproval      = errors.New("the caller has no such approval")
	errApprovalRunning = errors.New("the call is being made: its approval can't be withdrawn")
	errApprovalAway    = errors.New("the approval service does not answer: withdraw the approval again later")
)

// WithdrawApproval implements gatewayv1.GatewayServiceServer.
func (s *Service) WithdrawApproval(ctx context.Context, req *gatewayv1.WithdrawApprovalRequest) (*gatewayv1.WithdrawApprovalResponse, error) {
	err := s.pipeline.Withdraw(ctx, authn.CallerOf(ctx).Principal, req.GetApprovalId(), req.GetReason())
	switch {
	case err == nil, rpc.Reason(err) == "APPROVAL_ENDED":
		return new(gatewayv1.WithdrawApprovalResponse), nil
	case status.Code(err) == codes.NotFound:
		return nil, &rpc.Error{Code: codes.NotFound, Reason: "APPROVAL_UNKNOWN", Err: errNoApproval}
	case status.Code(err) == codes.FailedPrecondition:
		return nil, &rpc.Error{Code: codes.FailedPrecondition, Reason: "APPROVAL_RUNNING", Err: errApprovalRunning}
	default:
		s.deps.Log.WarnContext(ctx, "an approval can't be withdrawn", "approval_id", req.GetApprovalId(), "error", err)
		return nil, &rpc.Error{Code: codes.Unavailable, Reason: "APPROVAL_UNAVAILABLE", Err: errApprovalAway}
	}
}
