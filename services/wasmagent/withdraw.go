package wasmagent

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/agent"
)

const (
	withdrawTimeout = 2 * time.Second
	// withdrawPause is the delay between the first and the second request to withdraw an approval. The delay doubles
	// before each further request. maxWithdrawTries limits the number of requests. If all of them fail, they take about
	// two minutes in total.
	withdrawPause    = time.Second
	maxWithdrawTries = 8
)

// WithdrawApproval implements [agent.Host]. It cancels an approval for which the agent no longer waits. Otherwise an
// approver would decide on a call that never runs.
func (h host) WithdrawApproval(ctx context.Context, a *agent.Agent, approval, reason string) {
	ctx = authn.OnBehalfOf(ctx, a.Principal())
	if h.requestWithdrawal(ctx, approval, reason) == nil {
		return
	}
	h.background.Go(func() {
		pause := withdrawPause
		for range maxWithdrawTries - 1 {
			select {
			case <-h.closing:
				return
			case <-time.After(pause):
			}
			err := h.requestWithdrawal(ctx, approval, reason)
			if err == nil {
				return
			}
			pause *= 2
			h.log.WarnContext(ctx, "an approval for which no agent waits can't be withdrawn", "agent", a.ID, "approval_id", approval, "error", err)
		}
	})
}

// requestWithdrawal sends one request to the gateway. It returns nil if the approval no longer exists, or if the
// approved call is already running.
func (s *Service) requestWithdrawal(ctx context.Context, approval, reason string) error {
	ctx, cancel := context.WithTimeout(ctx, withdrawTimeout)
	defer cancel()
	_, err := s.gateway.WithdrawApproval(ctx, &gatewayv1.WithdrawApprovalRequest{ApprovalId: approval, Reason: reason})
	if code := status.Code(err); code == codes.NotFound || code == codes.FailedPrecondition {
		return nil
	}
	return err
}
