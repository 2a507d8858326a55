package attempt

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/trace"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	ratelimitv1 "github.com/sluice-mesh/sluice/gen/sluice/ratelimit/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/kept"
	"github.com/sluice-mesh/sluice/services/internal/journal"
)

const (
	// peerTimeout bounds each question to another service. One that is away is
	// known at once; this is for one that hangs, and longer than a busy machine
	// takes.
	peerTimeout = 2 * time.Second
	// settleTimeout bounds giving a reservation back.
	settleTimeout = time.Second
)

// A Journal records what was decided and what came of it. It keeps no record: whoever made
// one has it again once the method has returned.
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
	Kept    *kept.Decisions
	Limiter ratelimitv1.RateLimitServiceClient
	Journal Journal
	Tracer  trace.Tracer
	Log     *slog.Logger
}

// Desk has attempts judged, reserves their limits and records them. It is safe for
// concurrent use.
type Desk struct {
	deps Deps
	// blanks are records that no call needs.
	blanks sync.Pool
	// instances are those of the ratelimit role that have answered.
	instances instances
}

// NewDesk returns a desk.
func NewDesk(deps Deps) (*Desk, error) {
	if deps.Policy == nil || deps.Kept == nil || deps.Limiter == nil || deps.Journal == nil || deps.Tracer == nil || deps.Log == nil {
		return nil, errors.New("attempt: every dependency is required")
	}
	return &Desk{deps: deps}, nil
}

// NewID returns a decision's identifier: a UUID whose order is that of time.
func NewID() string { return uuid.Must(uuid.NewV7()).String() }
