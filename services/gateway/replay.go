package gateway

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	ratelimitv1 "github.com/sluice-mesh/sluice/gen/sluice/ratelimit/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/pipeline"
	"github.com/sluice-mesh/sluice/services/internal/journal"
)

const (
	// replayPast is how far back a replay looks. A claim that is older has long been
	// held to have an unknown outcome, which an operator resolves.
	replayPast = 48 * time.Hour
	// replayAtOnce is how many calls are settled at a time.
	replayAtOnce = 8
	// settleTimeout bounds giving a reservation back.
	settleTimeout = time.Second
)

// openCall is an approved call of which the approval service may not know what came
// of it: the newest of its claim, its intent and its outcome.
type openCall struct{ journal.Record }

// openCalls are the approved calls that the gateway left open when it ended last.
func openCalls(ctx context.Context, j *journal.Journal) ([]openCall, error) {
	open := make(map[string]openCall)
	for rec, err := range j.Calls(ctx, time.Now().Add(-replayPast)) {
		switch {
		case err != nil:
			return nil, fmt.Errorf("read what was left open: %w", err)
		case rec.ApprovalID == "":
		case rec.Kind == journal.KindSettled:
			delete(open, rec.DecisionID)
		case rec.Kind == journal.KindClaim, rec.Kind == journal.KindIntent, rec.Kind == journal.KindOutcome:
			open[rec.DecisionID] = openCall{rec}
		}
	}
	return slices.Collect(maps.Values(open)), nil
}

// replay tells the approval service what came of the calls that were left open. It
// tries until the service answers or ctx ends; meanwhile the gateway serves.
func (s *Service) replay(ctx context.Context) error {
	if len(s.left) == 0 {
		return nil
	}
	s.deps.Log.InfoContext(ctx, "approved calls were left open; the approval service is told what came of them", "calls", len(s.left))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(replayAtOnce)
	for _, call := range s.left {
		group.Go(func() error {
			s.settle(ctx, call)
			return nil
		})
	}
	return group.Wait()
}

// settle settles one call by what the journal has of it.
func (s *Service) settle(ctx context.Context, call openCall) {
	if err := s.tell(ctx, &call); err != nil {
		code := status.Code(err)
		if code != codes.FailedPrecondition && code != codes.NotFound { // which say that there is nothing to tell
			s.deps.Log.WarnContext(ctx, "a call is left open", "decision_id", call.DecisionID, "approval_id", call.ApprovalID, "error", err)
			return
		}
	}
	settled := journal.Record{
		DecisionID: call.DecisionID, TraceID: call.TraceID, Principal: call.Principal, Server: call.Server, Method: call.Method, Tool: call.Tool,
		ApprovalID: call.ApprovalID, Attempt: call.Attempt,
	}
	if err := s.journal.Settled(ctx, &settled); err != nil {
		s.deps.Log.WarnContext(ctx, "settled call not recorded", "decision_id", call.DecisionID, "error", err)
	}
}

func (s *Service) tell(ctx context.Context, call *openCall) error {
	never := call.Kind == journal.KindClaim || call.Kind == journal.KindOutcome && call.ResultClass == journal.ResultNeverSent
	switch {
	case never:
		return s.release(ctx, call)
	case call.Kind == journal.KindIntent:
		outcome := call.Record
		outcome.ResultClass, outcome.Message = journal.ResultUnknown, "the gateway ended before the outcome was recorded"
		outcome.Limits, outcome.ArgumentsHMAC, outcome.Votes, outcome.Grant = nil, "", nil, ""
		if err := s.journal.Outcome(ctx, &outcome); err != nil {
			return err
		}
		call.ResultClass = journal.ResultUnknown
	}
	return s.waiter.Complete(ctx, call.ApprovalID, call.DecisionID, pipeline.Outcomes[call.ResultClass])
}

// release gives a claim back whose call never left, and then its limits.
func (s *Service) release(ctx context.Context, call *openCall) error {
	lease, err := s.waiter.Release(ctx, call.ApprovalID, call.DecisionID, "the gateway ended before it sent the call")
	if err != nil || lease == "" {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	_, err = s.deps.RateLimit.SettleLease(ctx, &ratelimitv1.SettleLeaseRequest{
		Target: &ratelimitv1.SettleLeaseRequest_LeaseId{LeaseId: lease}, Settlement: ratelimitv1.Settlement_SETTLEMENT_NEVER_SENT,
	})
	if err != nil { // what was taken stays taken: against the caller, never for it
		s.deps.Log.WarnContext(ctx, "reservation was not given back", "decision_id", call.DecisionID, "error", err)
	}
	return nil
}
