package edge_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	ratelimitv1 "github.com/sluice-mesh/sluice/gen/sluice/ratelimit/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/edge"
	"github.com/sluice-mesh/sluice/services/gateway/internal/gate"
	"github.com/sluice-mesh/sluice/services/gateway/internal/meters"
	"github.com/sluice-mesh/sluice/services/gateway/internal/pipeline"
	"github.com/sluice-mesh/sluice/services/gateway/internal/room"
	"github.com/sluice-mesh/sluice/services/gateway/internal/session"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/gateway/internal/wait"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/journal"
)

const (
	anaToken      = "ana-token-A1b2C3d4E5f6G7h8-A1b2C3d4"
	benToken      = "ben-token-Z9y8X7w6V5u4T3s2-A1b2C3d4"
	operatorToken = "operator-token-Q1w2E3r4T5y6-A1b2C3d4"
	approverToken = "approver-token-U7i8O9p0A1s2-A1b2C3d4"
	viewerToken   = "viewer-token-D3f4G5h6J7k8-A1b2C3d4"
)

// world is an edge and everything around it, over pipes instead of a network, so
// that it works in a bubble of synctest.
type world struct {
	policyv1.PolicyServiceClient
	ratelimitv1.RateLimitServiceClient

	t        *testing.T
	tokens   *authn.Tokens
	pipe     *pipeline.Pipeline
	sessions *session.Store
	lis      *pipes
	client   *http.Client

	// What the parts around the edge do.
	standing *policyv1.CheckServerResponse
	filter   func(*policyv1.FilterToolsRequest) (*policyv1.FilterToolsResponse, error)
	open     func(upstream.Request) (upstream.Answer, error)
	request  func(context.Context, upstream.Request, func([]byte)) (upstream.Answer, error)
	people   people
	spans    *tracetest.SpanRecorder
	decision *policyv1.Decision
	outcome  error
	notify   error
	notReady []string
	degraded []string

	mu         sync.Mutex
	records    []journal.Record
	admissions []string
	decided    []*identityv1.Principal
	opened     []upstream.Request
	notified   []upstream.Request
	closed     int
	log        bytes.Buffer
}

// newWorld starts an edge before a server that answers everything. It must be
// called inside a bubble.
func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, lis: newPipes(), decision: &policyv1.Decision{Effect: policyv1.Effect_EFFECT_ALLOW}}
	w.standing = &policyv1.CheckServerResponse{CouldAllow: true, HidesNone: true}
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
	w.request = func(_ context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
		return answer(r, `{"content":[]}`), nil
	}
	w.build()
	return w
}

func (w *world) build() {
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
		worksFor("olga", token("agent-0", agentToken(0), authv1.TokenRole_TOKEN_ROLE_AGENT)), worksFor("olga", token("agent-1", agentToken(1), authv1.TokenRole_TOKEN_ROLE_AGENT)),
		worksFor("olga", token("agent-2", agentToken(2), authv1.TokenRole_TOKEN_ROLE_AGENT)),
		token("app", approverToken, authv1.TokenRole_TOKEN_ROLE_APPROVER), token("view", viewerToken, authv1.TokenRole_TOKEN_ROLE_VIEWER),
	})
	must(err)
	log := slog.New(slog.NewTextHandler((*logbook)(w), &slog.HandlerOptions{Level: slog.LevelDebug}))
	w.sessions, err = session.NewStore(session.Config{Idle: time.Hour, MaxPerPrincipal: 2}, log)
	must(err)
	w.spans = tracetest.NewSpanRecorder()
	tracer := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(w.spans)).Tracer("test")
	counts, err := meters.New(noop.Meter{})
	must(err)
	waiter, err := wait.New(wait.Config{MaxPending: 5, Execute: 5 * time.Minute, Holder: "gw", Clients: []wait.Client{{Name: "patient*", Hold: 35 * time.Second}}}, &w.people, counts, log)
	must(err)
	pipe, err := pipeline.New(pipeline.Deps{Policy: w, Limiter: w, Journal: (*book)(w), Waiter: waiter, Tracer: tracer, Meters: counts, Log: log})
	must(err)
	w.pipe = pipe
	answers, err := room.New(room.Answers())
	must(err)
	e, err := edge.New(edge.Config{Hosts: []string{"mcp.example"}, Origins: []string{"https://app.example"}}, edge.Deps{
		Tokens: w.tokens, Policy: w, Revision: func() string { return "" }, Pipeline: pipe, Sessions: w.sessions, Room: answers,
		Servers:   map[string]edge.Target{"files": {Server: (*server)(w), Timeout: time.Minute}},
		Admission: w.admit, Ready: func() []string { return w.notReady }, Degraded: func() []string { return w.degraded },
		Tracer: tracer, Meters: counts, Propagator: propagation.TraceContext{}, Log: log,
	})
	must(err)
	web := e.Server()
	served := make(chan error, 1)
	go func() { served <- web.Serve(w.lis) }()
	w.client = &http.Client{Transport: &http.Transport{DialContext: w.lis.DialContext}}
	w.t.Cleanup(func() {
		w.client.CloseIdleConnections()
		_ = web.Close()
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			w.t.Errorf("the edge ended with %v", err)
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

// worksFor gives a token an owner, and agentToken is the text of one of olga's.
func worksFor(owner string, t *identityv1.TokenRecord) *identityv1.TokenRecord {
	t.Token.Owner = owner
	return t
}

func agentToken(i int) string { return fmt.Sprintf("agent-token-%d-M1n2B3v4C5x6-A1b2C3d4", i) }

func (w *world) admit(code, peer string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.admissions = append(w.admissions, code+" from "+peer)
}

// of returns the records of a kind.
func (w *world) of(kind journal.Kind) []journal.Record {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(w.records), func(r journal.Record) bool { return r.Kind != kind })
}

func (w *world) logged() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.log.String()
}

func (w *world) DecideCall(ctx context.Context, _ *policyv1.DecideCallRequest, _ ...grpc.CallOption) (*policyv1.DecideCallResponse, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.decided = append(w.decided, authn.BehalfOf(ctx))
	return &policyv1.DecideCallResponse{Decision: w.decision}, nil
}

func (w *world) FilterTools(_ context.Context, r *policyv1.FilterToolsRequest, _ ...grpc.CallOption) (*policyv1.FilterToolsResponse, error) {
	return w.filter(r)
}

func (w *world) CheckServer(context.Context, *policyv1.CheckServerRequest, ...grpc.CallOption) (*policyv1.CheckServerResponse, error) {
	if w.standing == nil {
		return nil, errBoom
	}
	return w.standing, nil
}

// pipelineRuns lets the pipeline record what it counts, until the returned function is
// called.
func (w *world) pipelineRuns() (stop func()) {
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

// book is the world's journal.
type book world

func (b *book) write(kind journal.Kind, r *journal.Record) {
	b.mu.Lock()
	defer b.mu.Unlock()
	rec := *r
	rec.Kind = kind
	b.records = append(b.records, rec)
}

func (b *book) Intent(_ context.Context, r *journal.Record) error {
	b.write(journal.KindIntent, r)
	return nil
}

func (b *book) Outcome(_ context.Context, r *journal.Record) error {
	b.write(journal.KindOutcome, r)
	return b.outcome
}

func (b *book) Refusal(_ context.Context, r *journal.Record) error {
	b.write(journal.KindRefusal, r)
	return nil
}

func (b *book) Claim(_ context.Context, r *journal.Record) error {
	b.write(journal.KindClaim, r)
	return nil
}

func (b *book) Settled(_ context.Context, r *journal.Record) error {
	b.write(journal.KindSettled, r)
	return nil
}

func (b *book) Passed(_ context.Context, r *journal.Record) error {
	b.write(journal.KindPassed, r)
	return nil
}

func (*book) HMAC([]byte) string { return "x" }

// people is an approval service that keeps one approval, a-1, of ana's. The zero
// value keeps none.
type people struct {
	approvalv1.ApprovalServiceClient

	approval *approvalv1.Approval
	// moves are what a watch sends.
	moves chan *approvalv1.Approval
	// words are those of whoever sits at the agent.
	words chan *approvalv1.RequestApprovalRequest
}

func (p *people) GetApproval(ctx context.Context, req *approvalv1.GetApprovalRequest, _ ...grpc.CallOption) (*approvalv1.GetApprovalResponse, error) {
	if p.approval == nil || req.GetApprovalId() != p.approval.GetId() || authn.BehalfOf(ctx).GetSubject() != "ana" {
		return nil, grpcstatus.Error(codes.NotFound, "APPROVAL_UNKNOWN")
	}
	return &approvalv1.GetApprovalResponse{Approval: p.approval, View: &approvalv1.View{Server: "files", Name: "pay", Params: "{}"}}, nil
}

func (p *people) RequestApproval(_ context.Context, req *approvalv1.RequestApprovalRequest, _ ...grpc.CallOption) (*approvalv1.RequestApprovalResponse, error) {
	if req.GetSelfVote() != nil {
		p.words <- req
	}
	return &approvalv1.RequestApprovalResponse{Result: &approvalv1.RequestApprovalResponse_Asked{Asked: &approvalv1.Asked{Approval: p.approval, Confirm: req.GetCanConfirm()}}}, nil
}

func (p *people) WatchApprovals(ctx context.Context, _ *approvalv1.WatchApprovalsRequest, _ ...grpc.CallOption) (grpc.ServerStreamingClient[approvalv1.WatchApprovalsResponse], error) {
	return &watch{ctx: ctx, moves: p.moves}, nil
}

// watch sends moves as they come.
type watch struct {
	grpc.ClientStream

	ctx   context.Context //nolint:containedctx // a stream's own
	moves chan *approvalv1.Approval
}

func (s *watch) Recv() (*approvalv1.WatchApprovalsResponse, error) {
	select {
	case <-s.ctx.Done():
		return nil, s.ctx.Err()
	case a := <-s.moves:
		return &approvalv1.WatchApprovalsResponse{Approval: a}, nil
	}
}

// server is the world's upstream, and conn a session with it.
type (
	server world
	conn   world
)

func (*server) Transport() string { return "test" }
func (*server) Close() error      { return nil }

func (s *server) Open(_ context.Context, who upstream.Principal, r upstream.Request) (upstream.Conn, upstream.Answer, error) {
	if who.Tenant != "acme" && who.Subject != "system:catalogue" || who.Subject == "" {
		s.t.Errorf("a session was opened for %+v", who)
	}
	s.mu.Lock()
	s.opened = append(s.opened, r)
	s.mu.Unlock()
	a, err := s.open(r)
	if err != nil {
		return nil, upstream.Answer{}, err
	}
	return (*conn)(s), a, nil
}

func (c *conn) Request(ctx context.Context, r upstream.Request, events func([]byte)) (upstream.Answer, error) {
	return c.request(ctx, r, events)
}

func (c *conn) Notify(_ context.Context, r upstream.Request) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.notified = append(c.notified, r)
	return c.notify
}

func (c *conn) Close(context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed++
	return nil
}

// answer is a server's answer with a result of these bytes.
func answer(r upstream.Request, result string) upstream.Answer {
	return raw(`{"jsonrpc":"2.0","id":` + string(r.ID) + `,"result":` + result + `}`)
}

func raw(message string) upstream.Answer {
	a, err := gate.ReadAnswer([]byte(message), gate.AnswerLimits())
	if err != nil {
		panic(err)
	}
	return upstream.Answer{Message: a, Status: 200}
}

// reply is what a client gets.
type reply struct {
	status int
	header http.Header
	body   string
	// trailer is what follows a body.
	trailer http.Header
}

// code returns the code of the decision in a reply.
func (r reply) code() string {
	var m struct {
		Result struct {
			Meta map[string]struct{ Code string } `json:"_meta"`
		}
		Error struct {
			Data struct{ Code string }
		}
	}
	_ = json.Unmarshal([]byte(r.body), &m)
	if m.Error.Data.Code != "" {
		return m.Error.Data.Code
	}
	return m.Result.Meta["dev.sluice/decision"].Code
}

// do sends a request as ana, with these headers beside or instead.
func (w *world) do(method, path, body string, header http.Header) reply {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.t.Context(), method, "http://localhost"+path, strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	req.Header = http.Header{
		"Authorization": {"Bearer " + anaToken}, "Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"},
	}
	for key, values := range header {
		if key == "Host" {
			req.Host = values[0]
			continue
		}
		req.Header[key] = values
	}
	resp, err := w.client.Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return reply{status: resp.StatusCode, header: resp.Header, body: string(got), trailer: resp.Trailer}
}

const initialize = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{"sampling":{}},"clientInfo":{"name":"c","version":"1"}}}`

// connect opens a session and returns the headers of its requests.
func (w *world) connect() http.Header {
	w.t.Helper()
	return w.connectAs(initialize)
}

// connectAs opens a session with this initialize.
func (w *world) connectAs(initialize string) http.Header {
	w.t.Helper()
	got := w.do("POST", "/mcp/files", initialize, nil)
	id := got.header.Get("Mcp-Session-Id")
	if got.status != http.StatusOK || id == "" {
		w.t.Fatalf("initialize: %d %s", got.status, got.body)
	}
	return http.Header{"Mcp-Session-Id": {id}}
}

const toolCall = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"safe"}}`

// dial returns a bare connection, on which a test sends the very bytes.
func (w *world) dial() net.Conn {
	w.t.Helper()
	c, err := w.lis.DialContext(w.t.Context(), "", "")
	if err != nil {
		w.t.Fatal(err)
	}
	return c
}

// head is the head of a POST.
func head(token, session string, length int) string {
	out := "POST /mcp/files HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nAccept: text/event-stream, application/json\r\n"
	if token != "" {
		out += "Authorization: Bearer " + token + "\r\n"
	}
	if session != "" {
		out += "Mcp-Session-Id: " + session + "\r\n"
	}
	return out + fmt.Sprintf("Content-Length: %d\r\n\r\n", length)
}

// status reads the next response off a bare connection.
func status(c net.Conn) (int, error) {
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, err
}

// pipes is a network inside the process.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func newPipes() *pipes { return &pipes{conns: make(chan net.Conn), done: make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.done) })
	return nil
}

func (*pipes) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1} }

func (p *pipes) DialContext(ctx context.Context, _, _ string) (net.Conn, error) {
	ours, theirs := net.Pipe()
	select {
	case p.conns <- theirs:
		return ours, nil
	case <-p.done:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// logbook is the world's log.
type logbook world

func (l *logbook) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.log.Write(p)
}
