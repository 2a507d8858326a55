package pipeline_test

import (
	"context"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	ratelimitv1 "github.com/sluice-mesh/sluice/gen/sluice/ratelimit/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/arguments"
	"github.com/sluice-mesh/sluice/services/gateway/internal/attempt"
	"github.com/sluice-mesh/sluice/services/gateway/internal/decisioncache"
	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/meters"
	"github.com/sluice-mesh/sluice/services/gateway/internal/pipeline"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/journal"
)

// testPipeline contains fakes of the services that a pipeline needs. A test controls the fakes. testPipeline records
// the steps of calls in the order in which they happen.
type testPipeline struct {
	policyv1.PolicyServiceClient
	ratelimitv1.RateLimitServiceClient

	decide  func(context.Context, *policyv1.DecideCallRequest) (*policyv1.DecideCallResponse, error)
	reserve func(context.Context, *ratelimitv1.ReserveLimitsRequest) (*ratelimitv1.ReserveLimitsResponse, error)
	answer  func(context.Context, upstream.Request) (upstream.Answer, error)
	// approvals is the fake approval service, and hold is how long calls are held.
	approvals fakeApprovals
	hold      time.Duration
	// meter records metrics. If it is nil, no metrics are recorded.
	meter metric.Meter
	// broken contains, for each kind of record, the error that the fake journal returns.
	broken map[journal.Kind]error
	// arguments is the store for the arguments of calls. If it is nil, the method recorded opens a store.
	arguments *arguments.Store

	mu      sync.Mutex
	steps   []string
	records []journal.Record
	sent    []upstream.Request
	settled []*ratelimitv1.SettleLeaseRequest
}

// newTestPipeline returns a testPipeline in which the policy allows every call and the server answers every call.
func newTestPipeline() *testPipeline {
	return &testPipeline{
		decide: func(context.Context, *policyv1.DecideCallRequest) (*policyv1.DecideCallResponse, error) {
			return &policyv1.DecideCallResponse{Decision: allow()}, nil
		},
		reserve: func(context.Context, *ratelimitv1.ReserveLimitsRequest) (*ratelimitv1.ReserveLimitsResponse, error) {
			return granted("9"), nil
		},
		answer: func(_ context.Context, r upstream.Request) (upstream.Answer, error) {
			return result(r, `{"content":[]}`), nil
		},
		broken: make(map[journal.Kind]error),
	}
}

func (w *testPipeline) pipeline(t testing.TB) *pipeline.Pipeline {
	t.Helper()
	p, err := pipeline.New(pipeline.Deps{
		Policy: w, Decisions: w.emptyCache(t), Limiter: w, Journal: (*fakeJournal)(w), Arguments: w.recorded(t), Approvals: w.approvalsClient(t), Log: slog.New(slog.DiscardHandler),
		Tracer: sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.NeverSample())).Tracer("test"), Meters: w.meters(t),
	})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// recorded returns the store for the arguments of calls. It opens the store if necessary.
func (w *testPipeline) recorded(t testing.TB) *arguments.Store {
	t.Helper()
	if w.arguments != nil {
		return w.arguments
	}
	dir := t.TempDir()
	s, err := arguments.Open(arguments.Config{
		Dir: filepath.Join(dir, "arguments"), Keys: filepath.Join(dir, "keys"), Bytes: 1 << 20, Share: 0.5, Age: time.Hour, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	w.arguments = s
	return s
}

// emptyCache returns a decision cache that always stays empty, because it never gets a lease.
func (w *testPipeline) emptyCache(t testing.TB) *decisioncache.Cache {
	t.Helper()
	k, err := decisioncache.New(decisioncache.Deps{Policy: w, Meters: w.meters(t), Log: slog.New(slog.DiscardHandler)}, false)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func (w *testPipeline) meters(t testing.TB) *meters.Meters {
	t.Helper()
	if w.meter == nil {
		w.meter = noop.Meter{}
	}
	m, err := meters.New(w.meter)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func (w *testPipeline) step(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.steps = append(w.steps, name)
}

func (w *testPipeline) count(name string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for _, s := range w.steps {
		if s == name {
			n++
		}
	}
	return n
}

func (w *testPipeline) recordsOf(kind journal.Kind) []journal.Record {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(w.records), func(r journal.Record) bool { return r.Kind != kind })
}

func (w *testPipeline) DecideCall(ctx context.Context, r *policyv1.DecideCallRequest, _ ...grpc.CallOption) (*policyv1.DecideCallResponse, error) {
	w.step("decide")
	return w.decide(ctx, r)
}

func (w *testPipeline) ReserveLimits(ctx context.Context, r *ratelimitv1.ReserveLimitsRequest, _ ...grpc.CallOption) (*ratelimitv1.ReserveLimitsResponse, error) {
	w.step("reserve")
	return w.reserve(ctx, r)
}

func (w *testPipeline) SettleLease(_ context.Context, r *ratelimitv1.SettleLeaseRequest, _ ...grpc.CallOption) (*ratelimitv1.SettleLeaseResponse, error) {
	w.step("settle")
	w.mu.Lock()
	defer w.mu.Unlock()
	w.settled = append(w.settled, r)
	return &ratelimitv1.SettleLeaseResponse{Settled: true}, nil
}

func (w *testPipeline) Forward(ctx context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
	w.step("send")
	w.mu.Lock()
	w.sent = append(w.sent, r)
	w.mu.Unlock()
	return w.answer(ctx, r)
}

type fakeJournal testPipeline

func (b *fakeJournal) write(kind journal.Kind, r *journal.Record) error {
	w := (*testPipeline)(b)
	w.step(string(kind))
	if err := w.broken[kind]; err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	rec := *r
	rec.Kind = kind
	w.records = append(w.records, rec)
	return nil
}

func (b *fakeJournal) Claim(_ context.Context, r *journal.Record) error {
	return b.write(journal.KindClaim, r)
}

func (b *fakeJournal) Settled(_ context.Context, r *journal.Record) error {
	return b.write(journal.KindSettled, r)
}

func (b *fakeJournal) Intent(_ context.Context, r *journal.Record) error {
	return b.write(journal.KindIntent, r)
}

func (b *fakeJournal) Outcome(_ context.Context, r *journal.Record) error {
	return b.write(journal.KindOutcome, r)
}

func (b *fakeJournal) Refusal(_ context.Context, r *journal.Record) error {
	return b.write(journal.KindRefusal, r)
}

func (b *fakeJournal) Passed(_ context.Context, r *journal.Record) error {
	return b.write(journal.KindPassed, r)
}

func (*fakeJournal) HMAC(raw []byte) string { return "hmac of " + string(raw) }

func allow() *policyv1.Decision {
	return &policyv1.Decision{
		Effect: policyv1.Effect_EFFECT_ALLOW, PolicyRevision: "rev",
		Rule: &policyv1.RuleRef{Document: "doc", Rule: "tools.safe"},
	}
}

func limited(onError policyv1.OnLimiterError) *policyv1.Decision {
	d := allow()
	d.Limits = []*policyv1.RuleLimit{limit(onError)}
	return d
}

func limit(onError policyv1.OnLimiterError) *policyv1.RuleLimit {
	return &policyv1.RuleLimit{
		Rule:  &policyv1.RuleRef{Document: "doc", Rule: "tools.safe"},
		Limit: &ratelimitv1.Limit{Bucket: "b", Kind: ratelimitv1.LimitKind_LIMIT_KIND_SLIDING_WINDOW, Max: "10", Window: durationpb.New(time.Minute), Cost: "1"},
		Per:   []string{"session"}, OnError: onError, SessionKey: policyv1.SessionKey_SESSION_KEY_RUN,
	}
}

func decides(d *policyv1.Decision) func(context.Context, *policyv1.DecideCallRequest) (*policyv1.DecideCallResponse, error) {
	return func(context.Context, *policyv1.DecideCallRequest) (*policyv1.DecideCallResponse, error) {
		return &policyv1.DecideCallResponse{Decision: d}, nil
	}
}

func granted(left string) *ratelimitv1.ReserveLimitsResponse {
	return &ratelimitv1.ReserveLimitsResponse{Result: &ratelimitv1.ReserveLimitsResponse_Lease{Lease: &ratelimitv1.Lease{
		Id: "lease", Granted: timestamppb.New(time.Unix(1_800_000_000, 0)),
		Remaining: []*ratelimitv1.Remaining{{Bucket: "b", Remaining: left}},
	}}}
}

func result(r upstream.Request, raw string) upstream.Answer {
	body := []byte(`{"jsonrpc":"2.0","id":` + string(r.ID()) + `,"result":` + raw + `}`)
	a, err := jsonrpc.ReadAnswer(body, jsonrpc.AnswerLimits())
	if err != nil {
		panic(err)
	}
	return upstream.Answer{Message: a, Status: 200}
}

func caller(subject string) *identityv1.Principal {
	return &identityv1.Principal{
		Tenant: "acme", Subject: subject, Agent: "dev", Owner: "olga", Role: authv1.TokenRole_TOKEN_ROLE_AGENT,
		Session: "5e5510", Run: "run-1", TokenId: "laptop",
		Chain: []*identityv1.Principal{{Tenant: "acme", Subject: "creator"}},
	}
}

const safeCall = `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"safe","arguments":{"path":"/srv"}}}`

func parse(t testing.TB, raw string) *jsonrpc.Message {
	t.Helper()
	m, err := jsonrpc.Parse([]byte(raw), jsonrpc.DefaultLimits())
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func (w *testPipeline) call(t testing.TB) *attempt.Call {
	t.Helper()
	return &attempt.Call{
		Credential: authn.InProcess{},
		Principal:  caller("ana"), Server: "files", Message: parse(t, safeCall),
		Received: time.Now(), Timeout: time.Minute, Upstream: w,
	}
}

// definitionFunc implements attempt.Tools. The function returns the digest of the definition that a server lists for
// the called tool.
type definitionFunc func(ctx context.Context, now bool) ([]byte, error)

// Known implements attempt.Tools. It returns nil, so that the pipeline must list the server's tools.
func (definitionFunc) Known(context.Context) []byte { return nil }

func (d definitionFunc) Definition(ctx context.Context, now bool) ([]byte, error) { return d(ctx, now) }

// EnsureListed implements attempt.Tools. It returns false, as if the gateway had already listed the server's tools.
func (definitionFunc) EnsureListed(context.Context) (bool, *refusal.Refusal) { return false, nil }

func (definitionFunc) Listed(context.Context) (attempt.Listing, error) {
	return attempt.Listing{Listed: true}, nil
}

type heldReply struct{ held, reports int }

func (*heldReply) Event([]byte)   {}
func (c *heldReply) Hold()        { c.held++ }
func (c *heldReply) Progress(int) { c.reports++ }
