package sluice_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"sync"
	"testing"

	metricnoop "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace/noop"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	ratelimitv1 "github.com/sluice-mesh/sluice/gen/sluice/ratelimit/v1"
	"github.com/sluice-mesh/sluice/services/e2e/rawmcp"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
	"github.com/sluice-mesh/sluice/services/gateway"
	"github.com/sluice-mesh/sluice/services/identity"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/config"
	"github.com/sluice-mesh/sluice/services/internal/pki"
	"github.com/sluice-mesh/sluice/services/internal/rpc"
	"github.com/sluice-mesh/sluice/services/internal/rpc/rpctest"
	"github.com/sluice-mesh/sluice/services/internal/signeddecision"
	"github.com/sluice-mesh/sluice/services/policy"
	"github.com/sluice-mesh/sluice/services/ratelimit"
)

// The gateway never modifies a message that it has sent or received. Otherwise, a tool call or a policy decision could
// change after the policy service has evaluated the call.
func TestGateway_DoesNotChangeMessagesAfterSending(t *testing.T) {
	t.Parallel()
	up := rawmcp.Start(t, `[{"name":"safe","inputSchema":{}},{"name":"limited","inputSchema":{}},{"name":"danger","inputSchema":{}}]`)
	s := stack.WriteConfig(t, stack.Options{
		Servers: fmt.Sprintf("  raw: {http: {url: %q}}", up.URL),
		Policy:  "version: 1\nname: p\ndefault: deny\ntools:\n  safe: {action: allow}\n  danger: {action: deny, reason: no}\n  limited: {rate_limit: {max: 2, window: 60}}\n",
	})
	f, err := config.Load(s.Config, os.LookupEnv)
	if err != nil {
		t.Fatal(err)
	}
	w, url := serveWitnessed(t, f)
	c := stack.Connect(t, url+"/mcp/raw", stack.AgentToken)
	c.Post(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)
	for _, tool := range []string{"safe", "danger", "unlisted", "limited", "limited", "limited"} {
		if resp := c.Call(tool, `{"x":{"y":[1,2]}}`); resp.Status != http.StatusOK {
			t.Fatalf("%s: %d %s", tool, resp.Status, resp.Body)
		}
	}
	up.SetAnswer("safe", func(w http.ResponseWriter, _ *http.Request, _ string) { w.WriteHeader(http.StatusUnauthorized) })
	c.Call("safe", "{}")
	for _, method := range []string{
		policyv1.PolicyService_DecideCall_FullMethodName, policyv1.PolicyService_FilterTools_FullMethodName, ratelimitv1.RateLimitService_ReserveLimits_FullMethodName,
	} {
		if !slices.Contains(w.Methods(), method) {
			t.Errorf("%s was not called; only %q were", method, w.Methods())
		}
	}
}

// serveWitnessed starts a gateway. It returns the witness that checks the gateway's requests to other services, and the
// URL of the gateway's MCP endpoint.
func serveWitnessed(t *testing.T, f *config.File) (*rpctest.Witness, string) {
	t.Helper()
	log, tokens := slog.New(slog.DiscardHandler), new(authn.Tokens)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	server, err := rpc.NewServer(rpc.ServerConfig{}, rpc.ServerDeps{Tokens: tokens, Log: log})
	must(err)
	pcfg, err := policy.FromFile(f, os.LookupEnv)
	must(err)
	icfg, err := identity.FromFile(f, os.LookupEnv)
	must(err)
	must(tokens.Replace(icfg.Tokens))
	decisions, _, err := signeddecision.NewLocalPair()
	must(err)
	judge, err := policy.New(t.Context(), pcfg, policy.Deps{Tokens: tokens, Signer: decisions, Log: log})
	must(err)
	limiter, err := ratelimit.New(ratelimit.FromFile(f), ratelimit.Deps{Log: log})
	must(err)
	must(server.Add(authv1.Role_ROLE_POLICY, judge))
	must(server.Add(authv1.Role_ROLE_RATELIMIT, limiter))
	id, err := pki.Ephemeral(authv1.Role_ROLE_GATEWAY)
	must(err)
	signer, err := authn.NewSigner(authv1.Role_ROLE_GATEWAY, id.Key)
	must(err)
	conn, err := server.Conn(id.Peer, rpc.ClientDeps{Signer: signer})
	must(err)
	w := rpctest.NewWitness(t, conn)
	gcfg, err := gateway.FromFile(f, os.LookupEnv)
	must(err)
	edge, err := gateway.New(t.Context(), gcfg, gateway.Deps{
		Tokens: tokens, Policy: policyv1.NewPolicyServiceClient(w), Catalogue: policyv1.NewCatalogServiceClient(w), RateLimit: ratelimitv1.NewRateLimitServiceClient(w), Approval: approvalv1.NewApprovalServiceClient(w),
		Connections: identityv1.NewConnectionServiceClient(w), Agents: conn, Peers: map[string]healthv1.HealthClient{},
		Meter: metricnoop.Meter{}, Tracer: noop.NewTracerProvider().Tracer(""), Propagator: propagation.TraceContext{}, Log: log, Env: os.LookupEnv,
	})
	must(err)
	ctx, stop := context.WithCancel(t.Context())
	var group sync.WaitGroup
	group.Go(func() { _ = server.Serve(ctx) })
	group.Go(func() { _ = edge.Run(ctx) })
	t.Cleanup(func() {
		stop()
		group.Wait()
		if err := errors.Join(edge.Close(), judge.Close()); err != nil {
			t.Error(err)
		}
	})
	return w, "http://" + edge.Addr().String()
}
