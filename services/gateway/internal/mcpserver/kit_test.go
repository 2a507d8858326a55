package mcpserver_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"testing"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/gatewaytest"
	"github.com/sluice-mesh/sluice/services/gateway/internal/httpserver"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcpserver"
	"github.com/sluice-mesh/sluice/services/gateway/internal/pipeline"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/authn"
)

const (
	anaToken      = "ana-token-A1b2C3d4E5f6G7h8-A1b2C3d4"
	benToken      = "ben-token-Z9y8X7w6V5u4T3s2-A1b2C3d4"
	operatorToken = "operator-token-Q1w2E3r4T5y6-A1b2C3d4"
	approverToken = "approver-token-U7i8O9p0A1s2-A1b2C3d4"
	viewerToken   = "viewer-token-D3f4G5h6J7k8-A1b2C3d4"
)

// testGateway is a gateway that serves HTTP. It uses pipes instead of a network, because a synctest bubble cannot use a
// network.
type testGateway struct {
	*gatewaytest.Gateway

	t        testing.TB
	tokens   *authn.Tokens
	listener *pipeListener
	client   *http.Client
	// files is the server with the name "files". notes is a second server, or nil if there is none. path is the URL
	// path to which methods such as connectAs and openStream send their requests.
	files, notes *gatewaytest.Server
	path         string
	// hosts contains the clients for which the gateway evaluates calls to the client's built-in tools.
	hosts []string

	notReady []string
	degraded []string

	mu         sync.Mutex
	admissions []string
}

// newTestGateway starts a gateway with a fake server that answers every request. It must be called inside a synctest
// bubble.
func newTestGateway(t *testing.T) *testGateway {
	t.Helper()
	return newTestGatewayWithTransport(t, "")
}

// newTestGatewayWithTransport is like newTestGateway, but the server has the given kind of transport.
func newTestGatewayWithTransport(t *testing.T, kind string) *testGateway {
	t.Helper()
	w := prepareTestGateway(t, kind)
	w.build()
	return w
}

func prepareTestGateway(t testing.TB, kind string) *testGateway {
	t.Helper()
	w := &testGateway{Gateway: gatewaytest.New(t), t: t, path: "/mcp/files", listener: newPipeListener(), files: newTestServer(t, kind)}
	w.MaxSessions = 2
	w.Approvals.Confirms = true
	return w
}

// newTestServer returns a server that answers every request.
func newTestServer(t testing.TB, kind string) *gatewaytest.Server {
	t.Helper()
	s := gatewaytest.NewServer(t)
	s.Transport = cmp.Or(kind, "test")
	s.Open = func(r upstream.Request) (upstream.Answer, error) {
		return gatewaytest.Result(r, gatewaytest.Initialized), nil
	}
	s.Discovery = func(r upstream.Request) (upstream.Answer, error) {
		if r.Method() == "initialize" {
			return gatewaytest.Result(r, `{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"x","version":"1"}}`), nil
		}
		return gatewaytest.Result(r, `{"tools":[{"name":"safe"},{"name":"pay"},{"name":"a"},{"name":"b"},{"name":"c"},{"name":"x"},{"name":"root"}]}`), nil
	}
	s.Respond(`{"content":[]}`)
	return s
}

func (w *testGateway) build() {
	w.t.Helper()
	var err error
	w.tokens, err = authn.NewTokens([]*identityv1.TokenRecord{
		token("ana", anaToken, authv1.TokenRole_TOKEN_ROLE_AGENT), token("ben", benToken, authv1.TokenRole_TOKEN_ROLE_AGENT),
		token("op", operatorToken, authv1.TokenRole_TOKEN_ROLE_OPERATOR),
		withOwner("olga", token("agent-0", agentToken(0), authv1.TokenRole_TOKEN_ROLE_AGENT)), withOwner("olga", token("agent-1", agentToken(1), authv1.TokenRole_TOKEN_ROLE_AGENT)),
		withOwner("olga", token("agent-2", agentToken(2), authv1.TokenRole_TOKEN_ROLE_AGENT)),
		token("app", approverToken, authv1.TokenRole_TOKEN_ROLE_APPROVER), token("view", viewerToken, authv1.TokenRole_TOKEN_ROLE_VIEWER),
	})
	if err != nil {
		w.t.Fatal(err)
	}
	w.Servers["files"] = w.files
	if w.notes != nil {
		w.Servers["notes"] = w.notes
	}
	w.Config = mcpserver.Config{HTTP: httpserver.Config{Hosts: []string{"mcp.example"}, Origins: []string{"https://app.example"}}}
	w.Deps = func(deps *mcpserver.Deps) {
		deps.Tokens, deps.Admission = w.tokens, w.admit
		for _, client := range w.hosts {
			addHost(w.t, deps, client)
		}
		deps.Ready, deps.Degraded = func() []string { return w.notReady }, func() []string { return w.degraded }
	}
	w.Start()
	w.serve()
}

// serve serves HTTP until the end of the test.
func (w *testGateway) serve() {
	web := w.MCP.HTTPServer()
	served := make(chan error, 1)
	go func() { served <- web.Serve(w.listener) }()
	w.client = &http.Client{Transport: &http.Transport{DialContext: w.listener.DialContext}}
	w.t.Cleanup(func() {
		w.client.CloseIdleConnections()
		_ = web.Close()
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			w.t.Errorf("the server of MCP ended with %v", err)
		}
	})
}

func token(name, secret string, role authv1.TokenRole) *identityv1.TokenRecord {
	hash := authn.HashSecret(secret)
	return &identityv1.TokenRecord{Sha256: hash[:], Token: &identityv1.Token{Name: name, Tenant: gatewaytest.Tenant, Subject: name, Agent: "dev", Role: role}}
}

// withOwner sets the owner of the token in t, and returns t.
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

func (w *testGateway) setAccess(access *policyv1.CheckServerResponse) {
	w.Policy.Change(func() { w.Policy.Access = access })
}

// runPipeline runs the pipeline until stop is called. The pipeline periodically writes the records that contain counts.
// When stop is called, the pipeline writes the remaining counts.
func (w *testGateway) runPipeline() (stop func()) {
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = w.Pipeline.Run(ctx)
	}()
	return func() {
		cancel()
		<-done
	}
}

// countExempt counts messages of ana's for which no rule is needed, as if the gateway had received them. To send all
// messages of a quota takes much longer.
func (w *testGateway) countExempt(messages int, method string) {
	w.t.Helper()
	for range messages {
		if refused := w.Pipeline.CountExempt(pipeline.ExemptMessage{Principal: gatewaytest.Caller("ana").Principal, Server: "files", Method: method}); refused != nil {
			w.t.Fatalf("refused as %+v", refused)
		}
	}
}
