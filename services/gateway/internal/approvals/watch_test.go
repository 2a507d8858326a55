package approvals_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/approvals"
)

// breakingService is a fake approval service in which every approval stays pending. Its first watch fails after the
// given delay, and later watches succeed.
type breakingService struct {
	approvalv1.ApprovalServiceClient

	after   time.Duration
	err     error
	watches int
}

func (*breakingService) GetApproval(context.Context, *approvalv1.GetApprovalRequest, ...grpc.CallOption) (*approvalv1.GetApprovalResponse, error) {
	return &approvalv1.GetApprovalResponse{Approval: &approvalv1.Approval{Id: "a-1", State: approvalv1.ApprovalState_APPROVAL_STATE_PENDING}}, nil
}

func (b *breakingService) WatchApprovals(ctx context.Context, _ *approvalv1.WatchApprovalsRequest, _ ...grpc.CallOption) (grpc.ServerStreamingClient[approvalv1.WatchApprovalsResponse], error) {
	b.watches++
	return &brokenStream{ctx: ctx, of: b}, nil
}

type brokenStream struct {
	grpc.ClientStream

	ctx context.Context //nolint:containedctx // the stream's context
	of  *breakingService
}

func (s *brokenStream) Recv() (*approvalv1.WatchApprovalsResponse, error) {
	if s.of.watches > 1 {
		<-s.ctx.Done()
		return nil, status.FromContextError(s.ctx.Err()).Err()
	}
	time.Sleep(s.of.after)
	return nil, s.of.err
}

// A watch ends because the hold time is over, which is not logged as a failure of the approval service. A watch that
// fails before that is logged.
func TestWatch_HoldThatIsOverIsNotLogged(t *testing.T) {
	t.Parallel()
	const hold = 45 * time.Second
	late := status.Error(codes.DeadlineExceeded, "context deadline exceeded")
	for name, tt := range map[string]struct {
		after time.Duration
		err   error
		warns bool
	}{
		"it is over there a moment sooner": {hold - time.Millisecond, late, false},
		"at the same time":                 {hold, late, false},
		"another time is over":             {hold / 2, late, true},
		"the service goes away":            {hold - time.Millisecond, status.Error(codes.Unavailable, "away"), true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var log bytes.Buffer
				w, err := approvals.NewClient(approvals.Config{MaxPending: 5, Execute: time.Minute, Holder: "gw"}, &breakingService{after: tt.after, err: tt.err}, counts(t), slog.New(slog.NewTextHandler(&log, nil)))
				if err != nil {
					t.Fatal(err)
				}
				begin := time.Now()
				result, refused := w.WaitDecided(t.Context(), "a-1", approvals.Request{
					Principal: &identityv1.Principal{Subject: "bot"}, Until: begin.Add(hold), Caller: t.Context(), Drain: t.Context(),
				})
				if took := time.Since(begin); refused != nil || result.Approval.GetId() != "a-1" || took != hold {
					t.Errorf("after %v: %v, %v", took, result, refused)
				}
				if strings.Contains(log.String(), "approval is not watched") != tt.warns {
					t.Errorf("the log says %q", log.String())
				}
			})
		})
	}
}
