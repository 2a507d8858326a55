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
	// peerTimeout is the timeout of each request to another service. It is long enough for a service on a busy machine.
	// Requests to a stopped service fail immediately, so the timeout matters only if a service runs but does not
	// respond.
	peerTimeout = 2 * time.Second
	// settleTimeout is the timeout of a request that releases reserved limits.
	settleTimeout = time.Second
)

// A Journal records decisions and outcomes. Its methods do not retain the records they receive, so the caller may reuse
// a record.
type Journal interface {
	// Intent records that a call is about to be sent. If Intent returns an error, the call must not be sent.
	Intent(ctx context.Context, r *journal.Record) error
	// Outcome records the outcome of a call.
	Outcome(ctx context.Context, r *journal.Record) error
	// Refusal records that a call was refused.
	Refusal(ctx context.Context, r *journal.Record) error
	// Claim records that the gateway is about to claim an approval. If Claim returns an error, the gateway must not
	// claim the approval.
	Claim(ctx context.Context, r *journal.Record) error
	// Settled records that the approval service has received all reports about an approved call.
	Settled(ctx context.Context, r *journal.Record) error
	// Passed records how many messages were allowed without a policy rule.
	Passed(ctx context.Context, r *journal.Record) error
	// HMAC returns the keyed digest that the journal contains in place of the arguments.
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

// Client requests decisions from the policy service, reserves limits, and writes records for attempts. [NewClient]
// creates a Client. It is safe for concurrent use.
type Client struct {
	deps Deps
	// blanks contains records that are not in use. They are reused to avoid allocations.
	blanks sync.Pool
	// instances detects whether more than one instance of the ratelimit service answers.
	instances instances
}

// NewClient returns a client, or an error if a dependency is missing.
func NewClient(deps Deps) (*Client, error) {
	if deps.Policy == nil || deps.Decisions == nil || deps.Limiter == nil || deps.Journal == nil || deps.Tracer == nil || deps.Log == nil {
		return nil, errors.New("attempt: every dependency is required")
	}
	return &Client{deps: deps}, nil
}

// NewID returns a new decision id. It is a UUIDv7, so decision ids sort by time.
func NewID() string { return uuid.Must(uuid.NewV7()).String() }
