package pipeline

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/gate"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/gateway/internal/spans"
	"github.com/sluice-mesh/sluice/services/gateway/internal/wait"
	"github.com/sluice-mesh/sluice/services/internal/binding"
	"github.com/sluice-mesh/sluice/services/internal/journal"
	"github.com/sluice-mesh/sluice/services/internal/telemetry"
)

// maxClaims is how often a call claims anew because its approval changed meanwhile.
const maxClaims = 8

// tellTimeout is how long the answer of an approved call waits until the approval
// service knows what came of it: then the same call, made right after it, asks anew
// and finds no claim.
const tellTimeout = 200 * time.Millisecond

// approved is the approval that a call goes by, and the attempt of its claim.
type approved struct {
	*approvalv1.Approval

	attempt int32
	// votes are those that let it pass, known once it is claimed.
	votes []*approvalv1.Vote
}

// await waits for a person where the decision asks for one, and then takes the
// right to send the call, which others may want too.
func (r *run) await(ctx context.Context) *refusal.Refusal {
	if r.decision.GetEffect() == policyv1.Effect_EFFECT_ALLOW {
		return r.redeemed(ctx)
	}
	r.endTurn(false) // people take their time
	if r.Definition == nil {
		return wait.Unavailable()
	}
	if id := r.Message.Meta.Approval; id != "" {
		if refused := r.deps.Waiter.Report(ctx, r.Principal, id); refused != nil {
			return refused
		}
	}
	definition, err := r.Definition(ctx, false)
	if err != nil {
		return r.notListed(ctx, err)
	}
	until := r.deps.Waiter.HoldUntil(r.Client, time.Now())
	for range maxClaims {
		a, refused := r.deps.Waiter.Approved(ctx, r.question(definition, until))
		r.held.end()
		switch {
		case refused != nil:
			return refused
		case a == nil:
			return r.unasked(ctx)
		}
		refused, again := r.claim(ctx, a)
		if !again {
			return refused
		}
	}
	return wait.Unavailable()
}

// unasked is what becomes of a call of which policy asks nobody any more.
func (r *run) unasked(ctx context.Context) *refusal.Refusal {
	refused := r.verdict()
	if refused != nil && !r.denies() {
		return refused
	}
	if refused == nil {
		return r.redeemed(ctx)
	}
	r.redeem(ctx)
	return refused
}

// notListed is the refusal of a call whose tool's definition can't be read: what
// people would approve is not known.
func (r *run) notListed(ctx context.Context, err error) *refusal.Refusal {
	r.deps.Log.WarnContext(ctx, "the tool's definition was not read", "decision_id", r.id, "server", r.Server)
	r.deps.Log.DebugContext(ctx, "the tool's definition was not read", "decision_id", r.id, "error", err) // it may quote what a server wrote
	return &refusal.Refusal{Code: commonv1.Code_CODE_UPSTREAM_UNAVAILABLE, Message: "the server does not list its tools, so nobody can be asked about this call."}
}

func (r *run) question(definition []byte, until time.Time) wait.Question {
	return wait.Question{
		Principal: r.Principal, Judge: r.judging(definition), DecisionID: r.id, Until: until, Caller: r.caller, Drain: r.draining,
		Held: r.held.from(r.Held), Progress: r.Progress, Confirm: r.Confirm,
		Call: &approvalv1.BoundCall{ServerIdentity: r.Identity, Call: r.call(definition)},
	}
}

// claim judges the call again, as of now, reserves its limits and claims it. It
// tells whether the approval has changed, so that all begins anew.
func (r *run) claim(ctx context.Context, a *approvalv1.Approval) (refused *refusal.Refusal, again bool) {
	if r.Revoked == nil || r.Revoked() {
		return &refusal.Refusal{Code: commonv1.Code_CODE_POLICY_UNAVAILABLE}, false
	}
	definition, err := r.Definition(ctx, true)
	if err != nil {
		return r.notListed(ctx, err), false
	}
	judge := r.judging(definition)
	decided, refused := judge(ctx, a.GetId(), a.GetAttempt())
	if refused != nil {
		return refused, false
	}
	denied := r.verdict()
	if denied != nil && r.decision.GetEffect() != policyv1.Effect_EFFECT_DENY {
		return denied, false
	}
	r.id, r.lease, r.approved = newID(), nil, &approved{Approval: a, attempt: a.GetAttempt()}
	if refused := r.prepare(ctx, denied == nil); refused != nil {
		return r.drop(ctx, refused), false
	}
	// gofail: var gatewayBeforeClaim struct{}
	resp, err := r.deps.Waiter.Claim(ctx, r.claiming(decided, definition, judge))
	denied = r.verdict() // which may be another by now
	switch {
	case status.Code(err) == codes.Aborted: // another attempt; what was reserved may be its claim's
		return r.drop(ctx, nil), true
	case err != nil:
		r.deps.Log.WarnContext(ctx, "call was not claimed", "decision_id", r.id, "approval_id", a.GetId(), "error", err)
		return r.abandon(ctx, "whether the claim was made is not known"), false
	case resp.GetClaimed() == nil:
		return r.unclaimed(ctx, resp.GetRefusal())
	case denied != nil: // policy has the last word, whatever the approval service makes of it
		r.abandon(ctx, "policy denies the call now")
		return denied, false
	}
	// gofail: var gatewayAfterClaim struct{}
	return r.take(ctx, resp.GetClaimed()), false
}

// claiming is the wish to send the call by its approval, as policy has decided.
func (r *run) claiming(decided *policyv1.DecideCallResponse, definition []byte, judge wait.Judge) wait.Claiming {
	key := binding.LimitKey(r.approved.Approval, reserved(decided.GetDecision().GetLimits()))
	return wait.Claiming{
		Principal: r.Principal, Approval: r.approved.Approval, ID: r.id, Decided: decided, Lease: r.lease.GetId(),
		Definition: definition, ServerIdentity: r.Identity,
		Judge: func(ctx context.Context, approval string, attempt int32) (*policyv1.DecideCallResponse, *refusal.Refusal) {
			again, refused := judge(ctx, approval, attempt)
			if refused == nil && binding.LimitKey(r.approved.Approval, reserved(again.GetDecision().GetLimits())) != key {
				return nil, wait.Unavailable() // other limits than those that were reserved
			}
			return again, refused
		},
	}
}

// prepare records the claim and reserves the call's limits, under a key that all
// who race for this attempt share.
func (r *run) prepare(ctx context.Context, reserve bool) *refusal.Refusal {
	key := binding.LimitKey(r.approved.Approval, reserved(r.decision.GetLimits()))
	rec := r.intent(ctx)
	rec.ReservedAt, rec.LimitLeaseID = time.Time{}, ""
	if reserve && len(r.decision.GetLimits()) > 0 {
		rec.IdempotencyKey = key
	}
	if err := r.written(ctx, spans.JournalClaim, rec, r.deps.Journal.Claim); err != nil {
		if errors.Is(err, journal.ErrShare) { // nothing was written, so nothing is to be settled
			r.approved = nil
		}
		return r.unrecorded(ctx, err)
	}
	if !reserve {
		return nil
	}
	return r.reserveAs(ctx, key)
}

// unclaimed is what follows from a refused claim.
func (r *run) unclaimed(ctx context.Context, said *approvalv1.Refusal) (*refusal.Refusal, bool) {
	if said.GetLeaseUnused() {
		r.giveBack(ctx)
	}
	if said.GetCode() == commonv1.Code_CODE_APPROVAL_PENDING {
		return r.drop(ctx, nil), true
	}
	return r.drop(ctx, r.deps.Waiter.Refused(said)), false
}

// drop leaves a claim that was not made, or not kept.
func (r *run) drop(ctx context.Context, refused *refusal.Refusal) *refusal.Refusal {
	r.settled(ctx)
	r.approved, r.lease = nil, nil
	return refused
}

// abandon gives back a claim whose call is not sent after all.
func (r *run) abandon(ctx context.Context, reason string) *refusal.Refusal {
	r.neverSent(ctx, reason)
	r.approved, r.lease = nil, nil
	return wait.Unavailable()
}

// take puts the stored call in place of the one that came: what runs is what was
// approved.
func (r *run) take(ctx context.Context, c *approvalv1.Claimed) *refusal.Refusal {
	stored, err := restore(r.Message, c.GetBound().GetCall())
	if err != nil {
		r.deps.Log.ErrorContext(ctx, "the stored call could not be restored", "decision_id", r.id, "error", err)
		return r.abandon(ctx, "the stored call could not be restored")
	}
	r.Message = stored
	r.approved.votes = c.GetVotes()
	telemetry.Link(trace.SpanFromContext(ctx), c.GetApproval().GetTraceParent())
	return nil
}

// keep renews the claim of an approved call until the returned function is called.
func (r *run) keep(ctx context.Context) (stop func()) {
	if r.approved == nil {
		return func() {}
	}
	return r.deps.Waiter.Keep(ctx, r.approved.GetId(), r.id)
}

// neverSent gives back what a call has that provably never left: of an approved
// one first the claim, and only then its limits. It returns as later does.
func (r *run) neverSent(ctx context.Context, reason string) (told <-chan struct{}) {
	if r.approved == nil {
		r.giveBack(ctx)
		return nil
	}
	id := r.approved.GetId()
	return r.later(ctx, func(ctx context.Context, r *run) error {
		lease, err := r.deps.Waiter.Release(ctx, id, r.id, reason)
		if err == nil && lease != "" && lease == r.lease.GetId() {
			r.giveBack(ctx)
		}
		return err
	})
}

// told tells the approval service what came of an approved call. It returns as later
// does.
func (r *run) told(ctx context.Context, outcome *journal.Record) (told <-chan struct{}) {
	if r.approved == nil {
		return nil
	}
	// gofail: var gatewayBeforeComplete struct{}
	id, came := r.approved.GetId(), Outcomes[outcome.ResultClass]
	return r.later(ctx, func(ctx context.Context, r *run) error { return r.deps.Waiter.Complete(ctx, id, r.id, came) })
}

// Outcomes are what results mean for an approval.
var Outcomes = map[journal.ResultClass]approvalv1.CallOutcome{
	journal.ResultOK:            approvalv1.CallOutcome_CALL_OUTCOME_DONE,
	journal.ResultToolError:     approvalv1.CallOutcome_CALL_OUTCOME_FAILED,
	journal.ResultProtocolError: approvalv1.CallOutcome_CALL_OUTCOME_FAILED,
	journal.ResultUnknown:       approvalv1.CallOutcome_CALL_OUTCOME_UNKNOWN,
	journal.ResultNeverSent:     approvalv1.CallOutcome_CALL_OUTCOME_NEVER_SENT,
}

// soon waits a little until the approval service was told; nil is nothing to tell.
func soon(told <-chan struct{}) {
	if told == nil {
		return
	}
	late := time.NewTimer(tellTimeout)
	defer late.Stop()
	select {
	case <-told:
	case <-late.C:
	}
}

// later does what the caller need not wait for, and returns what is closed when it is
// done. What is not done when the gateway stops a replay of the journal does at the
// next start.
func (r *run) later(ctx context.Context, do func(ctx context.Context, r *run) error) (told <-chan struct{}) {
	done := make(chan struct{})
	again := *r // a refusal may go on with another approval
	ctx, cancel := context.WithCancel(ctx)
	end := context.AfterFunc(r.cut, cancel)
	r.telling.Go(func() {
		defer cancel()
		defer end()
		err := do(ctx, &again)
		close(done)
		if err != nil && status.Code(err) != codes.FailedPrecondition && status.Code(err) != codes.NotFound {
			again.deps.Log.WarnContext(ctx, "the approval service was not told what came of a call", "decision_id", again.id, "error", err)
			return
		}
		// gofail: var gatewayAfterComplete struct{}
		again.settled(ctx)
	})
	return done
}

// settled records that nothing is left to be told.
func (r *run) settled(ctx context.Context) {
	if r.approved == nil {
		return
	}
	if err := r.deps.Journal.Settled(ctx, r.base(ctx)); err != nil && !errors.Is(err, journal.ErrClosed) {
		r.deps.Log.WarnContext(ctx, "settled call not recorded", "decision_id", r.id, "error", err)
	}
}

// restore makes the message that is sent of the stored call: with the id and the
// volatile `_meta` of the one that came, and else what was approved.
func restore(came *gate.Message, call *policyv1.Call) (*gate.Message, error) {
	raw, err := gate.Restore(came, call.GetParamsJson())
	if err != nil {
		return nil, err
	}
	return gate.Parse(raw, widened())
}
