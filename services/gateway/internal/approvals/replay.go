package approvals

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sluice-mesh/sluice/services/internal/journal"
)

const (
	// replayPast limits the age of the claims that Replay settles. The approval service has already set the outcome of
	// older claims to unknown, so an operator must resolve them.
	replayPast = 48 * time.Hour
	// replayAtOnce limits how many calls Replay settles at the same time.
	replayAtOnce = 8
)

// OpenCall is an approved call whose outcome might not have been reported to the approval service. The embedded record
// is the newest of the journal's claim, intent and outcome records of that call.
type OpenCall struct{ journal.Record }

// OpenCalls returns the approved calls whose outcomes had not been reported when the gateway stopped.
func OpenCalls(ctx context.Context, j *journal.Journal) ([]OpenCall, error) {
	open := make(map[string]OpenCall)
	for rec, err := range j.Calls(ctx, time.Now().Add(-replayPast)) {
		switch {
		case err != nil:
			return nil, fmt.Errorf("read the approved calls that were left open: %w", err)
		case rec.ApprovalID == "":
		case rec.Kind == journal.KindSettled:
			delete(open, rec.DecisionID)
		case rec.Kind == journal.KindClaim, rec.Kind == journal.KindIntent, rec.Kind == journal.KindOutcome:
			open[rec.DecisionID] = OpenCall{rec}
		}
	}
	return slices.Collect(maps.Values(open)), nil
}

// Replay reports the outcomes of the open calls to the approval service. It retries until the service answers or ctx is
// cancelled. The gateway can serve requests while Replay is running.
func (k *Manager) Replay(ctx context.Context, open []OpenCall) error {
	if len(open) == 0 {
		return nil
	}
	k.log.InfoContext(ctx, "approved calls were left open; their outcomes are reported to the approval service now", "calls", len(open))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(replayAtOnce)
	for _, call := range open {
		group.Go(func() error {
			k.settleOpenCall(ctx, call.Record)
			return nil
		})
	}
	return group.Wait()
}

func (k *Manager) settleOpenCall(ctx context.Context, call journal.Record) {
	n := outcomeReport{approval: call.ApprovalID, claim: call.DecisionID, class: call.ResultClass, reason: "the gateway ended before it sent the call", lease: anyLease}
	var err error
	switch call.Kind { //nolint:exhaustive // there are no other kinds
	case journal.KindClaim:
		n.class = journal.ResultNeverSent
	case journal.KindIntent:
		n.class = journal.ResultUnknown
		outcome := call
		outcome.ResultClass, outcome.Message = n.class, "the gateway ended before the outcome was recorded"
		outcome.Limits, outcome.ArgumentsHMAC, outcome.Votes, outcome.Grant = nil, "", nil, ""
		err = k.attempts.WriteOutcome(ctx, &outcome)
	}
	if err == nil {
		err = k.sendReport(ctx, n)
	}
	if err != nil {
		k.log.WarnContext(ctx, "the outcome of an approved call was not reported; the call is left open", "decision_id", call.DecisionID, "approval_id", call.ApprovalID, "error", err)
		return
	}
	k.attempts.WriteSettled(ctx, &journal.Record{
		DecisionID: call.DecisionID, TraceID: call.TraceID, Principal: call.Principal, Server: call.Server, Method: call.Method, Tool: call.Tool,
		ApprovalID: call.ApprovalID, Attempt: call.Attempt,
	})
}
