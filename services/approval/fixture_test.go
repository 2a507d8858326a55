package approval_test

import (
	"context"
	"log/slog"
	"os"
	"sync"
	"testing"
	"time"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/approval"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/rpc"
	"github.com/sluice-mesh/sluice/services/internal/rpc/rpctest"
	"github.com/sluice-mesh/sluice/services/internal/sqlstore/sqlstoretest"
)

func TestMain(m *testing.M) { os.Exit(sqlstoretest.Main(m)) }

type fixture struct {
	*rpctest.Server
	svc    *approval.Service
	tokens *authn.Tokens
	meters sdkmetric.Reader
	spans  *tracetest.SpanRecorder
	policy *fakePolicy
	calls  *sync.Map // the calls for which approvals were requested, by approval id
}

// forEachStore runs the test story twice in parallel: with a service on SQLite, and with a service on PostgreSQL. The
// parameter change may be nil.
func forEachStore(t *testing.T, change func(*approval.Config), story func(t *testing.T, s *fixture)) {
	t.Helper()
	t.Parallel()
	for name, source := range map[string]func(t *testing.T) string{
		"SQLite":     func(*testing.T) string { return "sqlite" },
		"PostgreSQL": func(t *testing.T) string { t.Helper(); return sqlstoretest.Postgres(t) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := approval.DefaultConfig()
			cfg.Source, cfg.Data = source(t), t.TempDir()
			if change != nil {
				change(&cfg)
			}
			story(t, serve(t, cfg))
		})
	}
}

// people returns the tokens of package rpctest and some additional tokens: for approvers in groups, for an approver
// whose subject is the agent's, and for an operator of another tenant.
func people() []*identityv1.TokenRecord {
	ana, ben := rpctest.Record("ana", "default", authv1.TokenRole_TOKEN_ROLE_APPROVER), rpctest.Record("ben", "default", authv1.TokenRole_TOKEN_ROLE_APPROVER)
	ana.Token.Groups, ben.Token.Groups = []string{"finance"}, []string{"finance", "sales"}
	second := rpctest.Record("ben-2", "default", authv1.TokenRole_TOKEN_ROLE_OPERATOR)
	second.Token.Subject = "ben"
	bot := rpctest.Record("bot-approver", "default", authv1.TokenRole_TOKEN_ROLE_APPROVER)
	bot.Token.Subject = "bot"
	return append(rpctest.Records(), ana, ben, second, bot, rpctest.Record("acme-operator", "acme", authv1.TokenRole_TOKEN_ROLE_OPERATOR))
}

func serve(t *testing.T, cfg approval.Config) *fixture {
	t.Helper()
	policy := newFakePolicy(t)
	s := serveWith(t, cfg, policy)
	policy.start(t, s.svc)
	return s
}

// serveWith serves a service that has not received an active policy revision.
func serveWith(t *testing.T, cfg approval.Config, policy *fakePolicy) *fixture {
	t.Helper()
	tokens, err := authn.NewTokens(people())
	if err != nil {
		t.Fatal(err)
	}
	meters, spans := sdkmetric.NewManualReader(), tracetest.NewSpanRecorder()
	svc := newService(t, cfg, policy.deps(approval.Deps{
		Tokens: tokens, Meter: sdkmetric.NewMeterProvider(sdkmetric.WithReader(meters)).Meter("test"),
		Tracer: sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)).Tracer("test"), Log: slog.New(slog.DiscardHandler),
	}))
	return &fixture{
		Server: rpctest.Serve(t, authv1.Role_ROLE_APPROVAL, svc, rpctest.Options{Tokens: tokens}),
		svc:    svc, tokens: tokens, meters: meters, spans: spans, policy: policy, calls: new(sync.Map),
	}
}

func serveOnDisk(t *testing.T) *fixture {
	t.Helper()
	return serve(t, approvalConfig(t))
}

func approvalConfig(t *testing.T) approval.Config {
	t.Helper()
	cfg := approval.DefaultConfig()
	cfg.Data = t.TempDir()
	return cfg
}

func (s *fixture) count(t *testing.T) int {
	t.Helper()
	resp, err := s.person(t, "viewer").ListApprovals(timeoutContext(t), new(approvalv1.ListApprovalsRequest))
	if err != nil {
		t.Fatal(err)
	}
	return len(resp.GetApprovals())
}

func newService(t *testing.T, cfg approval.Config, deps approval.Deps) *approval.Service {
	t.Helper()
	svc, err := approval.New(t.Context(), cfg, deps)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := svc.Close(); err != nil {
			t.Error(err)
		}
	})
	return svc
}

func bot() *identityv1.Principal {
	return &identityv1.Principal{Tenant: "default", Subject: "bot", Agent: "dev", Owner: "olga", Role: authv1.TokenRole_TOKEN_ROLE_AGENT}
}

// gateway returns the client of a gateway, which makes requests on behalf of a principal. The fake policy service signs
// the decision in each request.
func (s *fixture) gateway() approvalv1.ApprovalServiceClient {
	return signingClient{approvalv1.NewApprovalServiceClient(s.Gateway()), s}
}

func (s *fixture) person(t *testing.T, token string) approvalv1.ApprovalServiceClient {
	t.Helper()
	return approvalv1.NewApprovalServiceClient(s.Person(t, token))
}

func onBehalfOf(t *testing.T, p *identityv1.Principal) context.Context {
	t.Helper()
	return authn.OnBehalfOf(timeoutContext(t), p)
}

func timeoutContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func decision(change ...func(*policyv1.Decision)) *policyv1.Decision {
	d := &policyv1.Decision{
		Effect: policyv1.Effect_EFFECT_REQUIRE_APPROVAL, PolicyRevision: "r1", RuleDigest: []byte("12345678901234567890123456789012"),
		Message: "money moves", Approval: &policyv1.ApprovalTerms{Quorum: 1},
	}
	for _, f := range change {
		f(d)
	}
	return d
}

func bound(params string) *approvalv1.BoundCall {
	return &approvalv1.BoundCall{ServerIdentity: "http http://pay/mcp", Call: &policyv1.Call{Server: "pay", Method: "tools/call", Name: "refund", ParamsJson: params}}
}

const params = `{"name":"refund","arguments":{"sum":12.50}}`

// ask requests an approval for the agent bot. If the request is refused, ask fails the test.
func (s *fixture) ask(t *testing.T, text string, change ...func(*policyv1.Decision)) *approvalv1.Asked {
	t.Helper()
	return s.requestAgain(t, bot(), &approvalv1.RequestApprovalRequest{Bound: bound(text), Decision: decision(change...), DecisionId: "d1"})
}

// requestAgain requests an approval. On a busy machine the service may answer that its store is unavailable.
// requestAgain then repeats the request, as callers do.
func (s *fixture) requestAgain(t *testing.T, who *identityv1.Principal, req *approvalv1.RequestApprovalRequest) *approvalv1.Asked {
	t.Helper()
	resp, err := s.gateway().RequestApproval(onBehalfOf(t, who), req)
	for n := 0; n < 10 && status.Code(err) == codes.Unavailable; n++ {
		resp, err = s.gateway().RequestApproval(onBehalfOf(t, who), req)
	}
	if err != nil || resp.GetAsked() == nil {
		t.Fatalf("ask: %v, %v", resp, err)
	}
	return resp.GetAsked()
}

// view returns the first part of the view of an approval.
func (s *fixture) view(t *testing.T, token, id string) *approvalv1.View {
	t.Helper()
	resp, err := s.person(t, token).GetApproval(timeoutContext(t), &approvalv1.GetApprovalRequest{ApprovalId: id, View: true})
	if err != nil {
		t.Fatal(err)
	}
	return resp.GetView()
}

func (s *fixture) vote(t *testing.T, token, id string, verdict approvalv1.Verdict) (*approvalv1.Approval, error) {
	t.Helper()
	resp, err := s.person(t, token).DecideApproval(timeoutContext(t), &approvalv1.DecideApprovalRequest{ApprovalId: id, Verdict: verdict, ViewDigest: s.view(t, "operator", id).GetDigest()})
	return resp.GetApproval(), err
}

func (s *fixture) approve(t *testing.T, token, id string) {
	t.Helper()
	if _, err := s.vote(t, token, id, approvalv1.Verdict_VERDICT_APPROVE); err != nil {
		t.Fatal(err)
	}
}

func claimRequest(a *approvalv1.Approval, claim string, change ...func(*approvalv1.ClaimApprovalRequest)) *approvalv1.ClaimApprovalRequest {
	req := &approvalv1.ClaimApprovalRequest{
		ApprovalId: a.GetId(), ClaimId: claim, Holder: "gw-1", Attempt: a.GetAttempt(), Decision: decision(), LimitLeaseId: "l-" + claim,
		ServerIdentity: "http http://pay/mcp",
	}
	for _, f := range change {
		f(req)
	}
	return req
}

// wantError checks the gRPC code and the reason in an error.
func wantError(t *testing.T, err error, code codes.Code, reason string) {
	t.Helper()
	if status.Code(err) != code || rpc.Reason(err) != reason {
		t.Errorf("got %v (%s), want %s, %s", err, rpc.Reason(err), code, reason)
	}
}
