package attempt

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/trace"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	ratelimitv1 "github.com/sluice-mesh/sluice/gen/sluice/ratelimit/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/journal"
)

const (
	// peerTimeout bounds each question to another service. One that is away is
	// known at once; this is for one that hangs, and longer than a busy machine
	// takes.
	peerTimeout = time.Second
	// settleTimeout bounds giving a reservation back.
	settleTimeout = time.Second
)

// A Journal records what was decided and what came of it.
type Journal interface {
	// Intent records that a call is about to be sent. On an error it must not be.
	Intent(ctx context.Context, r *journal.Record) error
	// Outcome records what came of a call.
	Outcome(ctx context.Context, r *journal.Record) error
	// Refusal records that a call was refused.
	Refusal(ctx context.Context, r *journal.Record) error
	// Claim records that an approved call is about to be claimed. On an error it must
	// not be.
	Claim(ctx context.Context, r *journal.Record) error
	// Settled records that nothing is left to be told about an approved call.
	Settled(ctx context.Context, r *journal.Record) error
	// Passed records how many messages that need no rule came.
	Passed(ctx context.Context, r *journal.Record) error
	// HMAC returns the keyed digest by which arguments are recorded.
	HMAC(b []byte) string
}

// Deps are the live objects that a [Desk] works with. Every field is required.
type Deps struct {
	Policy  policyv1.PolicyServiceClient
	Limiter ratelimitv1.RateLimitServiceClient
	Journal Journal
	Tracer  trace.Tracer
	Log     *slog.Logger
}

// Desk has attempts judged, reserves their limits and records them. It is safe for
// concurrent use.
type Desk struct{ deps Deps }

// NewDesk returns a desk.
func NewDesk(deps Deps) (*Desk, error) {
	if deps.Policy == nil || deps.Limiter == nil || deps.Journal == nil || deps.Tracer == nil || deps.Log == nil {
		return nil, errors.New("attempt: every dependency is required")
	}
	return &Desk{deps}, nil
}

// NewID returns a decision's identifier: a UUID whose order is that of time.
func NewID() string { return uuid.Must(uuid.NewV7()).String() }

// Judge asks policy about a call.
func (d *Desk) Judge(ctx context.Context, a Attempt) (Attempt, *refusal.Refusal) {
	resp, refused := d.decide(ctx, a, &policyv1.DecideCallRequest{Call: a.Bound(nil)})
	if refused == nil {
		a.Decision = resp.GetDecision()
	}
	return a, refused
}

// Attest asks policy about a call of a tool with this definition, as of now. The answer
// is signed for the approval service: for an approval and its attempt, or for none.
func (d *Desk) Attest(ctx context.Context, a Attempt, definition []byte, approval string, n int32) (*policyv1.DecideCallResponse, *refusal.Refusal) {
	return d.decide(ctx, a, &policyv1.DecideCallRequest{
		Call: a.Bound(definition), Attest: &policyv1.Attest{ServerIdentity: a.Identity, ApprovalId: approval, Attempt: n},
	})
}

func (d *Desk) decide(ctx context.Context, a Attempt, req *policyv1.DecideCallRequest) (*policyv1.DecideCallResponse, *refusal.Refusal) {
	ctx, cancel := context.WithTimeout(authn.OnBehalfOf(ctx, a.Principal), peerTimeout)
	defer cancel()
	resp, err := d.deps.Policy.DecideCall(ctx, req)
	if err != nil {
		d.deps.Log.WarnContext(ctx, "policy did not decide", "decision_id", a.ID, "error", err)
		return nil, &refusal.Refusal{Code: commonv1.Code_CODE_POLICY_UNAVAILABLE}
	}
	return resp, nil
}
