// Package gatewaytest provides a gateway for tests. It uses the production code of packages mcpserver, dispatch,
// protocol, pipeline, visibility and session. The other services and the MCP servers are fakes. The package uses no
// network, so it works in a synctest bubble.
package gatewaytest

import (
	"bytes"
	"context"
	"log/slog"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	ratelimitv1 "github.com/sluice-mesh/sluice/gen/sluice/ratelimit/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/approvals"
	"github.com/sluice-mesh/sluice/services/gateway/internal/arguments"
	"github.com/sluice-mesh/sluice/services/gateway/internal/decisioncache"
	"github.com/sluice-mesh/sluice/services/gateway/internal/forms"
	"github.com/sluice-mesh/sluice/services/gateway/internal/limits"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcpserver"
	"github.com/sluice-mesh/sluice/services/gateway/internal/meters"
	"github.com/sluice-mesh/sluice/services/gateway/internal/pipeline"
	"github.com/sluice-mesh/sluice/services/gateway/internal/servers"
	"github.com/sluice-mesh/sluice/services/gateway/internal/session"
	"github.com/sluice-mesh/sluice/services/gateway/internal/toolreport"
	"github.com/sluice-mesh/sluice/services/gateway/internal/toolreport/toolreporttest"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/journal"
)

// ServerTimeout is the timeout for requests to the servers of a [Gateway].
const ServerTimeout = time.Minute

// Patient is a prefix of client names. The gateway holds calls from clients with this prefix for 35 s while they wait
// for approvers. It does not hold calls from clients without the prefix.
const Patient = "patient"

// Gateway is a gateway whose dependencies are fakes. A test sets the exported fields before it calls [Gateway.Start].
type Gateway struct {
	// Policy, Approvals, Journal and Catalog are the gateway's fake dependencies.
	Policy    *Policy
	Approvals *Approvals
	Journal   *Journal
	Catalog   *toolreporttest.Catalog
	// Servers maps the configured names of the MCP servers to the servers.
	Servers map[string]*Server
	// Config configures the gateway.
	Config mcpserver.Config
	// MaxSessions limits how many sessions one principal may have.
	MaxSessions int
	// Sampler determines which requests are traced.
	Sampler sdktrace.Sampler
	// Start calls Deps to change the dependencies of the MCP server. Deps may be nil.
	Deps func(*mcpserver.Deps)

	// [Gateway.Start] sets the fields below. MCP contains the router.
	MCP      *mcpserver.Server
	Pipeline *pipeline.Pipeline
	Sessions *session.Store
	// Spans records the spans that the gateway has started and ended.
	Spans *tracetest.SpanRecorder

	t      testing.TB
	log    logBuffer
	tracer trace.Tracer
	meters *meters.Meters
}

// New returns a gateway that has not been started yet. Its policy allows every call. It has one server, named "files".
func New(t testing.TB) *Gateway {
	return &Gateway{
		Policy: NewPolicy(t), Approvals: new(Approvals), Journal: new(Journal), Catalog: new(toolreporttest.Catalog),
		Servers: map[string]*Server{"files": NewServer(t)}, MaxSessions: 10, Sampler: sdktrace.AlwaysSample(), t: t,
	}
}

// Start returns a gateway that has been started. The caller must run in a synctest bubble.
func Start(t testing.TB) *Gateway {
	t.Helper()
	g := New(t)
	g.Start()
	return g
}

// StartModern does the same as [Start], but the gateway's server supports only revision 2026-07-28, and its policy
// allows the given methods.
func StartModern(t testing.TB, methods ...string) *Gateway {
	t.Helper()
	g := New(t)
	g.Servers["files"] = NewModernServer(t)
	g.Policy.Access.Methods = methods
	g.Start()
	return g
}

// Files returns the server named "files".
func (g *Gateway) Files() *Server { return g.Servers["files"] }

// Start builds the gateway. When the test ends, the gateway's sessions are closed.
func (g *Gateway) Start() {
	g.t.Helper()
	log := slog.New(slog.NewTextHandler(&g.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	g.Spans = tracetest.NewSpanRecorder()
	g.tracer = sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(g.Spans), sdktrace.WithSampler(g.Sampler)).Tracer("test")
	var err error
	g.meters, err = meters.New(noop.Meter{})
	g.check(err)
	g.Sessions, err = session.NewStore(session.Config{Idle: time.Hour, MaxPerPrincipal: g.MaxSessions, Ended: func(*session.Session) {}}, log)
	g.check(err)
	g.t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = g.Sessions.Run(ctx) // Run only returns the error of ctx
	})
	g.Pipeline = g.newPipeline(log)
	g.MCP, err = mcpserver.New(g.Config, g.deps(log))
	g.check(err)
}

func (g *Gateway) deps(log *slog.Logger) mcpserver.Deps {
	g.t.Helper()
	tokens, err := authn.NewTokens(nil) // no token is authenticated, because tests set the callers
	g.check(err)
	catalog, err := toolreport.New(g.Catalog, log)
	g.check(err)
	memory, err := limits.NewBudget(limits.AnswerQuotas())
	g.check(err)
	nothing := func() []string { return nil }
	out := mcpserver.Deps{
		Tokens: tokens, Policy: g.Policy, Revision: g.revision, Scopes: func(string) []string { return nil }, Pipeline: g.Pipeline, Sessions: g.Sessions, Servers: g.targets(),
		Catalogue: catalog, AnswerMemory: memory, Forms: forms.Open(g.t.Context(), filepath.Join(g.t.TempDir(), "forms.json"), log), Secret: []byte("secret"), Admission: func(string, string) {}, Ready: nothing, Degraded: nothing,
		Tracer: g.tracer, Meters: g.meters, Propagator: propagation.TraceContext{}, Log: log,
	}
	if g.Deps != nil {
		g.Deps(&out)
	}
	return out
}

func (g *Gateway) newPipeline(log *slog.Logger) *pipeline.Pipeline {
	g.t.Helper()
	holds := []approvals.ClientHold{{Name: Patient + "*", Hold: 35 * time.Second}, {Name: "hours*", Hold: 2 * time.Hour}}
	waiting, err := approvals.NewClient(approvals.Config{MaxPending: 5, Execute: 5 * time.Minute, Holder: "gateway", ClientHolds: holds}, g.Approvals, g.meters, log)
	g.check(err)
	decisions, err := decisioncache.New(decisioncache.Deps{Policy: g.Policy, Meters: g.meters, Log: log}, false)
	g.check(err)
	recorded, err := arguments.Open(arguments.Config{Dir: g.t.TempDir(), Keys: g.t.TempDir(), Bytes: 1 << 20, Share: 1, Age: time.Hour, Log: log})
	g.check(err)
	g.t.Cleanup(func() { _ = recorded.Close() })
	out, err := pipeline.New(pipeline.Deps{
		Policy: g.Policy, Decisions: decisions, Limiter: limiter{}, Journal: g.Journal, Arguments: recorded, Approvals: waiting, Tracer: g.tracer, Meters: g.meters, Log: log,
	})
	g.check(err)
	return out
}

func (g *Gateway) check(err error) {
	g.t.Helper()
	if err != nil {
		g.t.Fatal(err)
	}
}

// limiter is a ratelimit service that is never called, because no decision has limits.
type limiter struct {
	ratelimitv1.RateLimitServiceClient
}

func (g *Gateway) targets() map[string]servers.Config {
	g.t.Helper()
	out := make(map[string]servers.Config)
	for name, server := range g.Servers {
		up, err := upstream.New(transport{server}, g.meters)
		g.check(err)
		out[name] = servers.Config{Upstream: up, Timeout: ServerTimeout, Identity: "sha256:" + name, ForEachPerson: server.ForEachPerson}
	}
	return out
}

func (g *Gateway) revision() (revision string) {
	g.Policy.Change(func() { revision = g.Policy.Revision })
	return revision
}

// Passed makes the pipeline write its counts. It returns, for each method, how many messages were allowed without a
// policy rule.
func (g *Gateway) Passed() map[string]int64 {
	ctx, cancel := context.WithCancel(g.t.Context())
	cancel()
	_ = g.Pipeline.Run(ctx) // Run only returns the error of ctx
	out := make(map[string]int64)
	for _, r := range g.Journal.Records(journal.KindPassed) {
		out[r.Method] += r.Count
	}
	return out
}

// Logged returns the gateway's log.
func (g *Gateway) Logged() string {
	g.log.mu.Lock()
	defer g.log.mu.Unlock()
	return g.log.text.String()
}

type logBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements io.Writer.
func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}
