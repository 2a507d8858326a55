package attempt_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/metric/noop"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	ratelimitv1 "github.com/sluice-mesh/sluice/gen/sluice/ratelimit/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/attempt"
	"github.com/sluice-mesh/sluice/services/gateway/internal/decisioncache"
	"github.com/sluice-mesh/sluice/services/gateway/internal/gatewaytest"
	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/meters"
	"github.com/sluice-mesh/sluice/services/internal/authn"
)

// fixture contains fakes of the services that an attempt needs.
type fixture struct {
	deps    attempt.Deps
	policy  *policy
	limiter *limiter
	journal *gatewaytest.Journal
	spans   *tracetest.SpanRecorder
	log     bytes.Buffer
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{policy: newPolicy(), limiter: new(limiter), journal: new(gatewaytest.Journal), spans: tracetest.NewSpanRecorder()}
	counts, err := meters.New(noop.Meter{})
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.NewTextHandler(&f.log, nil))
	decisions, err := decisioncache.New(decisioncache.Deps{Policy: f.policy, Meters: counts, Log: log}, false)
	if err != nil {
		t.Fatal(err)
	}
	f.deps = attempt.Deps{
		Policy: f.policy, Decisions: decisions, Limiter: f.limiter, Journal: f.journal, Log: log,
		Tracer: sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(f.spans)).Tracer("test"),
	}
	return f
}

func (f *fixture) client(t *testing.T) *attempt.Client {
	t.Helper()
	c, err := attempt.NewClient(f.deps)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// policy is a fake policy service that grants leases on its current epoch.
type policy struct {
	policyv1.PolicyServiceClient

	decide func(context.Context, *policyv1.DecideCallRequest) (*policyv1.DecideCallResponse, error)

	mu   sync.Mutex
	asks []*policyv1.DecideCallRequest
	for_ []*identityv1.Principal
}

func newPolicy() *policy {
	return &policy{decide: func(context.Context, *policyv1.DecideCallRequest) (*policyv1.DecideCallResponse, error) {
		return &policyv1.DecideCallResponse{Decision: allow(), Keeping: &policyv1.Keeping{Epoch: "epoch"}}, nil
	}}
}

func (p *policy) DecideCall(ctx context.Context, r *policyv1.DecideCallRequest, _ ...grpc.CallOption) (*policyv1.DecideCallResponse, error) {
	p.mu.Lock()
	p.asks, p.for_ = append(p.asks, r), append(p.for_, authn.PrincipalOf(ctx))
	p.mu.Unlock()
	return p.decide(ctx, r)
}

// asked returns how many decisions were requested from the fake policy service.
func (p *policy) asked() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.asks)
}

func (*policy) LeaseRevision(ctx context.Context, _ ...grpc.CallOption) (grpc.BidiStreamingClient[policyv1.LeaseRevisionRequest, policyv1.LeaseRevisionResponse], error) {
	return &leaseStream{ctx: ctx, requests: make(chan uint64, 1)}, nil
}

// leaseStream grants a lease for each request.
type leaseStream struct {
	grpc.ClientStream

	ctx      context.Context //nolint:containedctx // the stream's context
	requests chan uint64
}

func (s *leaseStream) Send(r *policyv1.LeaseRevisionRequest) error {
	s.requests <- r.GetNumber()
	return nil
}

func (s *leaseStream) CloseSend() error { return nil }

func (s *leaseStream) Recv() (*policyv1.LeaseRevisionResponse, error) {
	select {
	case <-s.ctx.Done():
		return nil, s.ctx.Err()
	case n := <-s.requests:
		return &policyv1.LeaseRevisionResponse{Request: n, Number: n, Epoch: "epoch", Revision: &policyv1.Revision{Id: "rev"}, Lease: durationpb.New(time.Second)}, nil
	}
}

type limiter struct {
	ratelimitv1.RateLimitServiceClient

	reserve func() (*ratelimitv1.ReserveLimitsResponse, error)
	settle  error

	mu      sync.Mutex // guards asks, and reserve in tests with concurrent requests
	asks    []*ratelimitv1.ReserveLimitsRequest
	settled []*ratelimitv1.SettleLeaseRequest
}

func (l *limiter) ReserveLimits(_ context.Context, r *ratelimitv1.ReserveLimitsRequest, _ ...grpc.CallOption) (*ratelimitv1.ReserveLimitsResponse, error) {
	l.mu.Lock()
	l.asks = append(l.asks, r)
	reserve := l.reserve
	l.mu.Unlock()
	return reserve()
}

func (l *limiter) SettleLease(_ context.Context, r *ratelimitv1.SettleLeaseRequest, _ ...grpc.CallOption) (*ratelimitv1.SettleLeaseResponse, error) {
	l.settled = append(l.settled, r)
	return new(ratelimitv1.SettleLeaseResponse), l.settle
}

func allow() *policyv1.Decision {
	return &policyv1.Decision{Effect: policyv1.Effect_EFFECT_ALLOW, PolicyRevision: "rev", Rule: &policyv1.RuleRef{Document: "doc", Rule: "allows"}}
}

func limitOf(key policyv1.SessionKey) *policyv1.RuleLimit {
	return &policyv1.RuleLimit{
		Rule: &policyv1.RuleRef{Document: "doc", Rule: "limits"}, SessionKey: key,
		Limit: &ratelimitv1.Limit{Bucket: "b", Kind: ratelimitv1.LimitKind_LIMIT_KIND_SLIDING_WINDOW, Max: "10", Window: durationpb.New(time.Minute), Cost: "1"},
	}
}

func caller() *identityv1.Principal {
	return &identityv1.Principal{
		Tenant: "acme", Subject: "bot", Agent: "dev", Owner: "ana", TokenId: "laptop", Session: "digest", Run: "run-1",
		Chain: []*identityv1.Principal{{Tenant: "acme", Subject: "ana", TokenId: "desk"}},
	}
}

const callText = `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"pay","arguments":{"to":"eve"}}}`

func parse(t *testing.T, text string) *jsonrpc.Message {
	t.Helper()
	m, err := jsonrpc.Parse([]byte(text), jsonrpc.DefaultLimits())
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// newAttempt returns the first attempt at a call that the policy allows. The parameter text is the call's message.
func newAttempt(t *testing.T, text string) attempt.Attempt {
	t.Helper()
	a := attempt.New(&attempt.Call{
		Credential: authn.InProcess{},
		Principal:  caller(), Server: "files", Transport: "http", Version: "2025-11-25", Identity: "https://files.example", Message: parse(t, text), Received: time.Now(),
	})
	a.Decision, a.Definition = allow(), []byte{0xab, 1}
	return a
}

// decided returns a copy of the attempt a with the decision d.
func decided(a attempt.Attempt, d *policyv1.Decision) attempt.Attempt {
	a.Decision = d
	return a
}

func (f *fixture) logged(text string) bool { return strings.Contains(f.log.String(), text) }
