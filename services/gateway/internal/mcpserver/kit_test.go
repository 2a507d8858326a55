package mcpserver_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"buf.build/go/protovalidate"
	"go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	ratelimitv1 "github.com/sluice-mesh/sluice/gen/sluice/ratelimit/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/approvals"
	"github.com/sluice-mesh/sluice/services/gateway/internal/decisioncache"
	"github.com/sluice-mesh/sluice/services/gateway/internal/httpserver"
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
	"github.com/sluice-mesh/sluice/services/internal/mcpmethod"
)

const (
	anaToken      = "ana-token-A1b2C3d4E5f6G7h8-A1b2C3d4"
	benToken      = "ben-token-Z9y8X7w6V5u4T3s2-A1b2C3d4"
	operatorToken = "operator-token-Q1w2E3r4T5y6-A1b2C3d4"
	approverToken = "approver-token-U7i8O9p0A1s2-A1b2C3d4"
	viewerToken   = "viewer-token-D3f4G5h6J7k8-A1b2C3d4"
)

// testGateway is a gateway with fakes of the other services and of its MCP servers. It uses pipes instead of a network,
// because a synctest bubble cannot use a network.
type testGateway struct {
	policyv1.PolicyServiceClient
	ratelimitv1.RateLimitServiceClient

	t        testing.TB
	tokens   *authn.Tokens
	pipe     *pipeline.Pipeline
	sessions *session.Store
	mcp      *mcpserver.Server
	listener *pipeListener
	client   *http.Client
	// catalog receives the tool lists of servers.
	catalog toolreporttest.Catalog

	// kind is the transport of the server.
	kind string
	// path is the URL path of the server. notes is a second server, or nil if there is none.
	path        string
	notes       *testGateway
	maxSessions int

	// The fields below configure the fakes.
	access   *policyv1.CheckServerResponse
	revision string
	filter   func(*policyv1.FilterToolsRequest) (*policyv1.FilterToolsResponse, error)
	// deniedNotifications are the notifications of MCP that policy denies. allowedMethods are the methods outside of MCP
	// that policy allows.
	deniedNotifications, allowedMethods []string
	// hidesName reports whether policy hides a prompt or resource with this name. If it is nil, requests to policy about
	// names fail.
	hidesName func(name string) bool
	open      func(upstream.Request) (upstream.Answer, error)
	// answerDiscovery answers requests in the gateway's own sessions. If it is nil, these requests are answered as in all
	// other sessions.
	answerDiscovery func(upstream.Request) (upstream.Answer, error)
	request         func(context.Context, upstream.Request, func([]byte)) (upstream.Answer, error)
	listen          func(context.Context, upstream.Listener) error
	approvals       fakeApprovals
	spans           *tracetest.SpanRecorder
	sampler         sdktrace.Sampler
	decision        *policyv1.Decision
	outcome         error
	notify          error
	notReady        []string
	degraded        []string

	mu           sync.Mutex
	records      []journal.Record
	admissions   []string
	principals   []*identityv1.Principal
	nameRequests []*policyv1.FilterNamesRequest
	beforeNames  func(context.Context) // called before names are filtered; may be nil
	digests      [][]byte              // the definition digests of the evaluated calls
	opened       []upstream.Request
	notified     []upstream.Request
	closed       int
	log          bytes.Buffer
}

// newTestGateway starts a gateway with a server that answers every request. It must be called inside a synctest bubble.
func newTestGateway(t *testing.T) *testGateway {
	t.Helper()
	return newTestGatewayWithTransport(t, "")
}

// newTestGatewayWithTransport is like newTestGateway, for a server with the given transport.
func newTestGatewayWithTransport(t *testing.T, kind string) *testGateway {
	t.Helper()
	w := prepareTestGateway(t, kind)
	w.build()
	return w
}

func prepareTestGateway(t testing.TB, kind string) *testGateway {
	t.Helper()
	w := &testGateway{t: t, kind: kind, path: "/mcp/files", maxSessions: 2, listener: newPipeListener(), decision: &policyv1.Decision{Effect: policyv1.Effect_EFFECT_ALLOW}, sampler: sdktrace.AlwaysSample()}
	w.access = &policyv1.CheckServerResponse{CouldAllow: true, HidesNone: true, PromptsAlike: true, ResourcesAlike: true}
	w.filter = func(r *policyv1.FilterToolsRequest) (*policyv1.FilterToolsResponse, error) {
		resp := new(policyv1.FilterToolsResponse)
		for _, tool := range r.GetTools() {
			resp.Tools = append(resp.Tools, &policyv1.ToolVisibility{Name: tool.GetName(), Visible: !strings.HasPrefix(tool.GetName(), "secret")})
		}
		return resp, nil
	}
	w.open = func(r upstream.Request) (upstream.Answer, error) {
		return answer(r, `{"protocolVersion":"2025-11-25","capabilities":{"tools":{"listChanged":true},"logging":{}},"serverInfo":{"name":"x","version":"1"}}`), nil
	}
	w.answerDiscovery = func(r upstream.Request) (upstream.Answer, error) {
		if r.Method() == "initialize" {
			return answer(r, `{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"x","version":"1"}}`), nil
		}
		return answer(r, `{"tools":[{"name":"safe"},{"name":"pay"},{"name":"a"},{"name":"b"},{"name":"c"},{"name":"x"},{"name":"root"}]}`), nil
	}
	w.request = func(_ context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
		return answer(r, `{"content":[]}`), nil
	}
	return w
}

func (w *testGateway) build() {
	w.t.Helper()
	var err error
	must := func(err error) {
		w.t.Helper()
		if err != nil {
			w.t.Fatal(err)
		}
	}
	w.tokens, err = authn.NewTokens([]*identityv1.TokenRecord{
		token("ana", anaToken, authv1.TokenRole_TOKEN_ROLE_AGENT), token("ben", benToken, authv1.TokenRole_TOKEN_ROLE_AGENT),
		token("op", operatorToken, authv1.TokenRole_TOKEN_ROLE_OPERATOR),
		withOwner("olga", token("agent-0", agentToken(0), authv1.TokenRole_TOKEN_ROLE_AGENT)), withOwner("olga", token("agent-1", agentToken(1), authv1.TokenRole_TOKEN_ROLE_AGENT)),
		withOwner("olga", token("agent-2", agentToken(2), authv1.TokenRole_TOKEN_ROLE_AGENT)),
		token("app", approverToken, authv1.TokenRole_TOKEN_ROLE_APPROVER), token("view", viewerToken, authv1.TokenRole_TOKEN_ROLE_VIEWER),
	})
	must(err)
	log := slog.New(slog.NewTextHandler((*logWriter)(w), &slog.HandlerOptions{Level: slog.LevelDebug}))
	w.sessions, err = session.NewStore(session.Config{Idle: time.Hour, MaxPerPrincipal: w.maxSessions, Ended: func(*session.Session) {}}, log)
	must(err)
	w.spans = tracetest.NewSpanRecorder()
	tracer := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(w.spans), sdktrace.WithSampler(w.sampler)).Tracer("test")
	counts, err := meters.New(noop.Meter{})
	must(err)
	waiter, err := approvals.NewClient(approvals.Config{MaxPending: 5, Execute: 5 * time.Minute, Holder: "gw", ClientHolds: []approvals.ClientHold{{Name: "patient*", Hold: 35 * time.Second}}}, &w.approvals, counts, log)
	must(err)
	decisions, err := decisioncache.New(decisioncache.Deps{Policy: w, Meters: counts, Log: log}, false)
	must(err)
	pipe, err := pipeline.New(pipeline.Deps{Policy: w, Decisions: decisions, Limiter: w, Journal: (*fakeJournal)(w), Approvals: waiter, Tracer: tracer, Meters: counts, Log: log})
	must(err)
	w.pipe = pipe
	reporter, err := toolreport.New(&w.catalog, log)
	must(err)
	answers, err := limits.NewBudget(limits.AnswerQuotas())
	must(err)
	targets := make(map[string]servers.Config)
	for name, of := range map[string]*testGateway{"files": w, "notes": w.notes} {
		if of != nil {
			up, err := upstream.New((*server)(of), counts)
			must(err)
			targets[name] = servers.Config{Upstream: up, Timeout: time.Minute, Identity: "sha256:" + name}
		}
	}
	e, err := mcpserver.New(mcpserver.Config{HTTP: httpserver.Config{Hosts: []string{"mcp.example"}, Origins: []string{"https://app.example"}}}, mcpserver.Deps{
		Tokens: w.tokens, Policy: w, Revision: func() string { return w.revision }, Pipeline: pipe, Sessions: w.sessions, Catalogue: reporter, AnswerMemory: answers, Secret: []byte("s"),
		Servers:   targets,
		Admission: w.admit, Ready: func() []string { return w.notReady }, Degraded: func() []string { return w.degraded },
		Tracer: tracer, Meters: counts, Propagator: propagation.TraceContext{}, Log: log,
	})
	must(err)
	w.mcp = e
	web := e.HTTPServer()
	served := make(chan error, 1)
	go func() { served <- web.Serve(w.listener) }()
	w.client = &http.Client{Transport: &http.Transport{DialContext: w.listener.DialContext}}
	w.t.Cleanup(func() {
		w.client.CloseIdleConnections()
		_ = web.Close()
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			w.t.Errorf("the server of MCP ended with %v", err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = w.sessions.Run(ctx)
	})
}

func token(name, secret string, role authv1.TokenRole) *identityv1.TokenRecord {
	hash := authn.HashSecret(secret)
	return &identityv1.TokenRecord{Sha256: hash[:], Token: &identityv1.Token{Name: name, Tenant: "acme", Subject: name, Agent: "dev", Role: role}}
}

// withOwner sets the owner of a token. agentToken returns one of the bearer tokens that olga owns.
func withOwner(owner string, t *identityv1.TokenRecord) *identityv1.TokenRecord {
	t.Token.Owner = owner
	return t
}

func agentToken(i int) string { return fmt.Sprintf("agent-token-%d-M1n2B3v4C5x6-A1b2C3d4", i) }

func (w *testGateway) admit(code, peer string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.admissions = append(w.admissions, code+" from "+peer)
}

func (w *testGateway) recordsOf(kind journal.Kind) []journal.Record {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(w.records), func(r journal.Record) bool { return r.Kind != kind })
}

func (w *testGateway) logged() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.log.String()
}

func (w *testGateway) DecideCall(ctx context.Context, r *policyv1.DecideCallRequest, _ ...grpc.CallOption) (*policyv1.DecideCallResponse, error) {
	if err := w.validate(r); err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.digests = append(w.digests, r.GetCall().GetDefinitionDigest())
	w.principals = append(w.principals, authn.PrincipalOf(ctx))
	return &policyv1.DecideCallResponse{Decision: w.decision}, nil
}

func (w *testGateway) FilterTools(_ context.Context, r *policyv1.FilterToolsRequest, _ ...grpc.CallOption) (*policyv1.FilterToolsResponse, error) {
	if err := w.validate(r); err != nil {
		return nil, err
	}
	return w.filter(r)
}

func (w *testGateway) FilterNames(ctx context.Context, r *policyv1.FilterNamesRequest, _ ...grpc.CallOption) (*policyv1.FilterNamesResponse, error) {
	if err := w.validate(r); err != nil {
		return nil, err
	}
	if w.beforeNames != nil {
		w.beforeNames(ctx)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.nameRequests = append(w.nameRequests, r)
	if w.hidesName == nil {
		return nil, errBoom
	}
	resp := new(policyv1.FilterNamesResponse)
	for _, name := range r.GetNames() {
		resp.Visible = append(resp.Visible, !w.hidesName(name))
	}
	return resp, nil
}

func (w *testGateway) CheckServer(_ context.Context, req *policyv1.CheckServerRequest, _ ...grpc.CallOption) (*policyv1.CheckServerResponse, error) {
	if err := w.validate(req); err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.access == nil {
		return nil, errBoom
	}
	resp := proto.CloneOf(w.access)
	for _, method := range req.GetMethods() {
		if slices.Contains(mcpmethod.Notifications(), method) && !slices.Contains(w.deniedNotifications, method) || slices.Contains(w.allowedMethods, method) {
			resp.Methods = append(resp.Methods, method)
		}
	}
	return resp, nil
}

// validate checks a request against the contract of the policy service, which refuses a request that breaks it. It does
// nothing in benchmarks, because the check is no work of the gateway.
func (w *testGateway) validate(req proto.Message) error {
	if _, isBenchmark := w.t.(*testing.B); isBenchmark {
		return nil
	}
	if err := protovalidate.Validate(req); err != nil {
		w.t.Errorf("a request breaks the contract of the policy service: %T: %v", req, err)
		return grpcstatus.Error(codes.InvalidArgument, err.Error())
	}
	return nil
}

// decidedDigests returns the definition digests of the calls that policy has evaluated.
func (w *testGateway) decidedDigests() [][]byte {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.digests)
}

func (w *testGateway) setAccess(access *policyv1.CheckServerResponse) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.access = access
}

// runPipeline runs the pipeline, which records its counts, until stop is called.
func (w *testGateway) runPipeline() (stop func()) {
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = w.pipe.Run(ctx)
	}()
	return func() {
		cancel()
		<-done
	}
}

type logWriter testGateway

func (l *logWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.log.Write(p)
}
