package approvals

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/attempt"
	"github.com/sluice-mesh/sluice/services/gateway/internal/meters"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/quota"
	"github.com/sluice-mesh/sluice/services/internal/rpc"
)

const (
	// askTimeout is the timeout of a short request to the approval service. requestTimeout is the timeout of a request
	// that contains a whole call. It is longer, because a call can have megabytes of arguments, and because people take
	// much longer to decide anyway. If the approval service's store does not respond, the service itself returns an
	// error within 2 s.
	askTimeout, requestTimeout = 2 * time.Second, 10 * time.Second
	// progressEvery is the interval between progress notifications to a held caller.
	progressEvery = 10 * time.Second
	// firstPause and lastPause are the shortest and the longest pause before a failed watch is restarted.
	firstPause = 200 * time.Millisecond
	lastPause  = 5 * time.Second
	// maxAttestations limits how often the policy service is asked to evaluate a call again because the approval
	// service has rejected the decision as stale.
	maxAttestations = 3
	// clockTolerance limits how much earlier than the gateway the approval service may end a hold because their clocks
	// differ.
	clockTolerance = time.Second
)

const (
	pending  = approvalv1.ApprovalState_APPROVAL_STATE_PENDING
	approved = approvalv1.ApprovalState_APPROVAL_STATE_APPROVED
	denied   = approvalv1.ApprovalState_APPROVAL_STATE_DENIED
)

// Config configures a [Client].
type Config struct {
	// Hold is how long the gateway holds a call open while approvers decide. If it is 0, the caller immediately
	// receives the ticket, which is a refusal that contains the approval's id.
	Hold time.Duration
	// ClientHolds sets different hold times for clients with certain names. The first matching pattern applies.
	ClientHolds []ClientHold
	// MaxPending is how many calls of one principal may wait for approvers. It must be positive and equal to the limit
	// that is configured in the approval service, which enforces it. The gateway only mentions it in refusals.
	MaxPending int
	// Execute is the time, counted from the approval, within which a call must be made if its rule sets no other time.
	// It must be positive and equal to the time that is configured in the approval service.
	Execute time.Duration
	// Holder is the name of this gateway, with 1 to 128 characters. It must stay the same after a restart.
	Holder string
}

// Client requests approvals and waits for them. It is safe for concurrent use.
type Client struct {
	cfg     Config
	clients []compiledHold
	client  approvalv1.ApprovalServiceClient
	meters  *meters.Meters
	log     *slog.Logger

	tickets *tickets

	held *quota.Quota
}

// NewClient returns a client, or an error if a dependency is missing or the configuration is invalid.
func NewClient(cfg Config, client approvalv1.ApprovalServiceClient, m *meters.Meters, log *slog.Logger) (*Client, error) {
	if client == nil || m == nil || log == nil {
		return nil, errors.New("approvals: every dependency is required")
	}
	if cfg.Hold < 0 || cfg.MaxPending < 1 || cfg.Execute <= 0 || cfg.Holder == "" {
		return nil, errors.New("approvals: hold must not be negative, max_pending and execute must be positive, and holder must not be empty")
	}
	clients, err := compileHolds(cfg.ClientHolds)
	if err != nil {
		return nil, err
	}
	return &Client{cfg: cfg, clients: clients, client: client, meters: m, log: log, tickets: newTickets(), held: quota.New("calls that are held open", quota.For(maxHeld))}, nil
}

// Request is a request to approve a call.
type Request struct {
	// Principal is the caller.
	Principal *identityv1.Principal
	// Call is the call to approve. Attest asks the policy service to evaluate that call.
	Call   *approvalv1.BoundCall
	Attest Attest
	// DecisionID is the id under which the journal records the policy service's decision.
	DecisionID string
	// ApprovalID is the id of the approval for which the call waited in an earlier request, or empty.
	ApprovalID string
	// Until is the time at which the gateway stops holding the call.
	Until time.Time
	// Caller is cancelled when the caller disconnects. Drain is cancelled when the gateway is about to stop. In both
	// cases the approval stays pending, and the gateway makes the call only if the caller repeats it.
	Caller, Drain context.Context //nolint:containedctx // the context of the call does not end in these two cases
	// Reply is notified when the call is held. It may be nil.
	Reply attempt.Reply
	// Confirm asks the person who uses the agent to confirm the call, until ctx is cancelled. It is nil if the client
	// cannot ask that person.
	Confirm attempt.Confirm
}

// Attest asks the policy service to evaluate a call and to sign the decision for the approval service. The signature
// covers the approval's id and attempt number. If the id is empty, the decision is not bound to an approval. If no
// usable decision can be obtained, Attest returns a refusal with the reason.
type Attest func(ctx context.Context, approval string, attempt int32) (*policyv1.DecideCallResponse, *refusal.Refusal)

// Result is the result of an approval request.
type Result struct {
	// Approval is the current state of the approval, or nil if there is no approval.
	Approval *approvalv1.Approval
	// Decision is the last decision of the policy service on the call, or nil if there is no decision.
	Decision *policyv1.Decision
	// Held is how long the call was held open.
	Held time.Duration
}

// RequestAndHold requests an approval and holds the call until the approval may be claimed. If the approval cannot be
// claimed, RequestAndHold returns a refusal with the reason. If the approvers do not decide in time, this refusal is
// the ticket, which contains the approval's id. If the policy requires no approval, RequestAndHold returns neither a
// refusal nor an approval.
func (w *Client) RequestAndHold(ctx context.Context, q Request) (Result, *refusal.Refusal) {
	ctx = authn.OnBehalfOf(ctx, q.Principal)
	resp, decision, refused, err := w.request(ctx, q, &approvalv1.RequestApprovalRequest{CanConfirm: q.Confirm != nil && time.Now().Before(q.Until)})
	result := Result{Approval: resp.GetAsked().GetApproval(), Decision: decision}
	switch {
	case err != nil:
		w.log.WarnContext(ctx, "approval was not requested", "decision_id", q.DecisionID, "error", err)
		return result, Unavailable()
	case resp == nil:
		return result, refused
	case result.Approval == nil:
		return result, w.translateRefusal(resp.GetRefusal())
	}
	w.remember(q, result.Approval)
	if !resp.GetAsked().GetConfirm() {
		q.Confirm = nil // the approval service does not allow the gateway to ask the user
	}
	if result.Approval.GetState() == pending {
		if result, refused = w.hold(ctx, q, result); refused != nil {
			return result, refused
		}
	}
	switch result.Approval.GetState() { //nolint:exhaustive // the call is refused in every other state
	case approved:
		return result, nil
	case approvalv1.ApprovalState_APPROVAL_STATE_OUTCOME_UNKNOWN: // the claim shows whether the call may run
		return result, nil
	default:
		return result, refusalFor(result.Approval)
	}
}

// request requests an approval. It obtains the policy service's current decision, includes it in the request and
// returns it. If the policy service returns no decision, request returns a refusal. If the policy requires no approval,
// request returns neither a refusal nor a response.
func (w *Client) request(ctx context.Context, q Request, req *approvalv1.RequestApprovalRequest) (*approvalv1.RequestApprovalResponse, *policyv1.Decision, *refusal.Refusal, error) {
	req.Bound, req.DecisionId, req.ApprovalId = q.Call, q.DecisionID, q.ApprovalID
	var last *policyv1.Decision
	for judged := 1; ; judged++ {
		said, refused := q.Attest(ctx, req.GetSelfVote().GetApprovalId(), 0)
		if refused != nil {
			return nil, last, refused, nil
		}
		if last = said.GetDecision(); last.GetEffect() != policyv1.Effect_EFFECT_REQUIRE_APPROVAL {
			return nil, last, nil, nil
		}
		req.Decision, req.SignedDecision = last, said.GetSignedDecision()
		inTime, cancel := context.WithTimeout(ctx, requestTimeout)
		resp, err := w.client.RequestApproval(inTime, req)
		cancel()
		if !isStale(err) || judged == maxAttestations {
			return resp, last, nil, err
		}
	}
}

// RefuseIfEnded returns a refusal if the approval with this id has ended or cannot be read. It returns nil if the
// approval is pending or approved, because the call can then still use it.
func (w *Client) RefuseIfEnded(ctx context.Context, p *identityv1.Principal, id string) *refusal.Refusal {
	a, refused := w.get(authn.OnBehalfOf(ctx, p), id)
	if refused != nil {
		return refused
	}
	switch a.GetState() { //nolint:exhaustive // the approval has ended in every other state
	case pending, approved:
		return nil
	default:
		return refusalFor(a)
	}
}

// WaitDecided waits until the principal's approval with this id is no longer pending, or until the hold time in the
// request is over. It returns the state of the approval.
func (w *Client) WaitDecided(ctx context.Context, id string, q Request) (Result, *refusal.Refusal) {
	ctx = authn.OnBehalfOf(ctx, q.Principal)
	a, refused := w.get(ctx, id)
	if refused != nil || a.GetState() != pending {
		return Result{Approval: a}, refused
	}
	return w.hold(ctx, q, Result{Approval: a})
}

func (w *Client) get(ctx context.Context, id string) (*approvalv1.Approval, *refusal.Refusal) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	resp, err := w.client.GetApproval(ctx, &approvalv1.GetApprovalRequest{ApprovalId: id})
	switch code := status.Code(err); {
	case code == codes.NotFound || code == codes.InvalidArgument:
		return nil, &refusal.Refusal{Code: commonv1.Code_CODE_APPROVAL_EXPIRED, Message: "this caller has no such approval."}
	case err != nil || resp.GetApproval() == nil:
		w.log.WarnContext(ctx, "approval was not read", "error", err)
		return nil, Unavailable()
	}
	return resp.GetApproval(), nil
}

// hold holds the call until the approval is no longer pending, or until the call may not be held any longer.
func (w *Client) hold(ctx context.Context, q Request, initial Result) (result Result, refused *refusal.Refusal) {
	ctx, cancel := context.WithDeadline(ctx, q.Until)
	defer cancel()
	defer context.AfterFunc(q.Caller, cancel)()
	defer context.AfterFunc(q.Drain, cancel)()
	if ctx.Err() != nil || !w.addHeld(q.Principal) {
		return initial, nil
	}
	defer w.removeHeld(q.Principal)
	begin := time.Now()
	defer func() {
		result.Held = time.Since(begin)
		w.meters.RecordHeld(ctx, result.Approval.GetState(), result.Held)
	}()
	if q.Reply != nil {
		q.Reply.Hold()
	}
	defer w.notifyHeld(ctx, q)()
	end := w.startConfirm(ctx, q, initial.Approval, cancel)
	result = Result{Approval: w.watchUntilDecided(ctx, initial.Approval), Decision: initial.Decision}
	answer := end()
	if answer.decision != nil {
		result.Decision = answer.decision
	}
	// The answer may contain a newer state of the approval than the one that the watch has reported.
	if answer.approval.GetVersion() > result.Approval.GetVersion() {
		result.Approval = answer.approval
	}
	if answer.answer == attempt.Declined && result.Approval.GetState() != denied {
		return result, refusalAtAgent(result.Approval)
	}
	return result, nil
}

func (w *Client) watchUntilDecided(ctx context.Context, a *approvalv1.Approval) *approvalv1.Approval {
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		a = w.watch(ctx, a)
		if a.GetState() != pending {
			return a
		}
		select {
		case <-ctx.Done():
			return a
		case <-time.After(pause):
		}
	}
}

// notifyHeld notifies the caller at intervals that the call is held, until the returned function is called.
func (*Client) notifyHeld(ctx context.Context, q Request) (stop func()) {
	if q.Reply == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(progressEvery)
		defer tick.Stop()
		for n := 1; ; n++ {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				q.Reply.Progress(n)
			}
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

// watch waits until an approval is no longer pending or the connection to the approval service fails. It returns the
// last known state of the approval.
func (w *Client) watch(ctx context.Context, a *approvalv1.Approval) *approvalv1.Approval {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := w.client.WatchApprovals(ctx, &approvalv1.WatchApprovalsRequest{ApprovalId: a.GetId()})
	for err == nil {
		var m *approvalv1.WatchApprovalsResponse
		if m, err = stream.Recv(); err == nil && m.GetApproval() != nil {
			a = m.GetApproval()
			if a.GetState() != pending {
				return a
			}
		}
	}
	if ctx.Err() == nil && !isHoldOver(ctx, err) {
		w.log.WarnContext(ctx, "approval is not watched", "approval_id", a.GetId(), "error", err)
	}
	return a
}

// isHoldOver reports whether a watch has ended because the hold time is over. The approval service may end the watch
// slightly earlier than the gateway would, because their clocks differ.
func isHoldOver(ctx context.Context, err error) bool {
	end, ok := ctx.Deadline()
	return ok && status.Code(err) == codes.DeadlineExceeded && time.Until(end) < clockTolerance
}

// isStale reports whether the approval service rejected a decision as too old.
func isStale(err error) bool { return rpc.Reason(err) == "DECISION_STALE" }

func isUnavailable(err error) bool {
	code := status.Code(err)
	return code == codes.Unavailable || code == codes.DeadlineExceeded
}
