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
	"github.com/sluice-mesh/sluice/services/gateway/internal/decisioncache"
	"github.com/sluice-mesh/sluice/services/internal/journal"
)

const (
	// peerTimeout limits each request to another service. An unavailable service is noticed at once; this limit is
	// for one that hangs, and is longer than a busy machine takes.
	peerTimeout = 2 * time.Second
	// settleTimeout limits giving a reservation back.
	settleTimeout = time.Second
)

// A Journal records decisions and outcomes. Its methods do not retain the record: the caller may reuse it after they
// have returned.
type Journal interface {
	// Intent records that a call is about to be sent. If it fails, the call must not be sent.
	Intent(ctx context.Context, r *journal.Record) error
	// Outcome records the outcome of a call.
	Outcome(ctx context.Context, r *journal.Record) error
	// Refusal records that a call was refused.
	Refusal(ctx context.Context, r *journal.Record) error
	// Claim records that an approved call is about to be claimed. If it fails, the call must not be claimed.
	Claim(ctx context.Context, r *journal.Record) error
	// Settled records that nothing is left to report to the approval service about an approved call.
	Settled(ctx context.Context, r *journal.Record) error
	// Passed records how many messages that need no rule arrived.
	Passed(ctx context.Context, r *journal.Record) error
	// HMAC returns the keyed digest by which arguments are recorded.
	HMAC(b []byte) string
}

// Deps are the dependencies of a [Client]. Every field is required.
type Deps struct {
	Policy    policyv1.PolicyServiceClient
	Decisions *decisioncache.Cache
	Limiter   ratelimitv1.RateLimitServiceClient
	Journal   Journal
	Tracer    trace.Tracer
	Log       *slog.Logger
}

// Client asks the policy service about attempts, reserves their limits and records them. [NewClient] creates it. It is
// safe for concurrent use.
type Client struct {
	deps Deps
	// blanks are unused records. Calls take them to avoid allocations.
	blanks sync.Pool
	// instances are the instances of the ratelimit role that have answered.
	instances instances
}

// NewClient returns a client, or an error if a dependency is missing.
func NewClient(deps Deps) (*Client, error) {
	if deps.Policy == nil || deps.Decisions == nil || deps.Limiter == nil || deps.Journal == nil || deps.Tracer == nil || deps.Log == nil {
		return nil, errors.New("attempt: every dependency is required")
	}
	return &Client{deps: deps}, nil
}

// NewID returns the identifier of a decision: a UUIDv7, which sorts by time.
func NewID() string { return uuid.Must(uuid.NewV7()).String() }
