package sluice_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/timestamppb"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/e2e/rawmcp"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
	"github.com/sluice-mesh/sluice/services/internal/telemetry/telemetrytest"
)

// A mesh records exactly the spans that docs/telemetry.md lists.
func TestTelemetry_SpansAreDocumented(t *testing.T) {
	t.Parallel()
	collector := stack.NewCollector(t)
	t.Run("calls", func(t *testing.T) { produceAllSpans(t, collector.URL) }) // the end of the subtest exports the last spans
	made := make(map[string]bool)
	for _, span := range collector.Spans("") {
		kind := strings.TrimPrefix(span.Kind.String(), "SPAN_KIND_")
		made[spanName(span)+" "+kind] = true
	}
	documented := make(map[string]bool)
	for _, row := range telemetrytest.Documented(t, "../../docs/telemetry.md", "Spans") {
		for kind := range strings.SplitSeq(row[1], ", ") {
			documented[row[0]+" "+kind] = true
		}
	}
	if diff := cmp.Diff(documented, made); diff != "" {
		t.Errorf("spans (-documented +made):\n%s", diff)
	}
}

// spanName returns the name of a span as docs/telemetry.md writes it.
func spanName(s stack.Span) string {
	const agents = "sluice.wasmagent.v1.AgentService/"
	switch method := s.Attributes["mcp.method.name"]; {
	case strings.HasPrefix(s.Name, agents):
		return agents + "METHOD"
	case method == "":
		return s.Name
	case s.Name == method:
		return "METHOD"
	default:
		return strings.ReplaceAll(s.Name, s.Attributes["gen_ai.tool.name"], "TOOL")
	}
}

func produceAllSpans(t *testing.T, collector string) {
	up := rawmcp.Start(t, `[{"name":"limited","inputSchema":{}},{"name":"pay","inputSchema":{}}]`)
	s := stack.Start(t, stack.WriteConfig(t, stack.Options{
		Servers: fmt.Sprintf("  raw: {http: {url: %q}}\n  agents: {grpc: {target: wasmagent}}", up.URL),
		Policy: "version: 1\nname: p\ndefault: deny\ntools:\n  limited: {rate_limit: {max: 2, window: 60}}\n  pay: {action: require_approval}\n  wasm_agent_create: {action: allow}\n  wasm_agent_prompt: {action: allow}\n  wasm_agent_terminate: {action: allow}\n  wasm_model_ask: {action: allow}\n" +
			"rules:\n  - {name: lists, match: {method: prompts/list}, action: allow}\n  - {name: prompts, match: {prompt: p}, action: allow}\n",
		Extra: fmt.Sprintf("telemetry: {otlp: %q, sample: 1}\napprovals: {hold: 1s}", collector),
	}))
	agents := stack.Connect(t, s.MCP("agents"), stack.AgentToken)
	for create, prompt := range map[string]string{
		`{"manifest":{"tools":[{"server":"raw","tool":"other"}]}}`: "tool raw other", // policy denies this call
		// This agent lists its tools and asks a model. Both actions must be recorded as spans.
		`{"model":"script:lines","manifest":{"tools":[{"server":"raw","tool":"other"}],"models":[{"model":"script:lines"}]}}`: "say hello",
	} {
		_, made, _ := strings.Cut(agents.Call("wasm_agent_create", create).Text(t), `"id":"`)
		id, _, _ := strings.Cut(made, `"`)
		agents.Call("wasm_agent_prompt", fmt.Sprintf(`{"agentId":%q,"input":%q}`, id, prompt))
	}
	// This agent is terminated while it waits for an approval. The approval is cancelled.
	_, made, _ := strings.Cut(agents.Call("wasm_agent_create", `{"manifest":{"tools":[{"server":"raw","tool":"pay"}]}}`).Text(t), `"id":"`)
	waiting, _, _ := strings.Cut(made, `"`)
	agents.Call("wasm_agent_prompt", fmt.Sprintf(`{"agentId":%q,"input":"tool raw pay"}`, waiting))
	agents.Call("wasm_agent_terminate", fmt.Sprintf(`{"agentId":%q}`, waiting))
	c := stack.Connect(t, s.MCP("raw"), stack.AgentToken)
	c.Post(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)
	up.SetAnswer("", rawmcp.Result(`{"prompts":[{"name":"p"}]}`))
	c.Post(`{"jsonrpc":"2.0","id":1,"method":"prompts/list"}`)
	c.Post(`{"jsonrpc":"2.0","id":"x","result":{}}`) // a response without a request
	c.Call("limited", "{}")
	c.Call("pay", "{}") // the call is held, and gets a ticket
	people := approvalv1.NewApprovalServiceClient(s.Operator(t))
	list, err := people.ListApprovals(stack.TimeoutContext(t), &approvalv1.ListApprovalsRequest{Filter: &approvalv1.ApprovalFilter{
		States: []approvalv1.ApprovalState{approvalv1.ApprovalState_APPROVAL_STATE_PENDING},
	}})
	if err != nil || len(list.GetApprovals()) != 1 {
		t.Fatal(list, err)
	}
	if _, err := people.DecideApproval(stack.TimeoutContext(t), &approvalv1.DecideApprovalRequest{ApprovalId: list.GetApprovals()[0].GetId(), Verdict: approvalv1.Verdict_VERDICT_APPROVE, ViewDigest: digestOf(t, people, list)}); err != nil {
		t.Fatal(err)
	}
	c.Call("pay", "{}")
	c.Call("denied", "{}")
	up.Stop()
	c.Call("limited", "{}") // the call can't be sent, and its reservation is released
	if err := s.Stop(t); err != nil {
		t.Errorf("the mesh stopped with %v", err)
	}
}

// digestOf returns the digest of an approval's view. The parameter list contains only this approval.
func digestOf(t *testing.T, people approvalv1.ApprovalServiceClient, list *approvalv1.ListApprovalsResponse) []byte {
	t.Helper()
	shown, err := people.GetApproval(stack.TimeoutContext(t), &approvalv1.GetApprovalRequest{ApprovalId: list.GetApprovals()[0].GetId(), View: true})
	if err != nil {
		t.Fatal(err)
	}
	return shown.GetView().GetDigest()
}

// A mesh records exactly the metrics that docs/telemetry.md lists, with their units, kinds, descriptions and
// attributes. The document must list all values that each attribute can have.
func TestTelemetry_MetricsAreDocumented(t *testing.T) {
	t.Setenv("OTEL_METRIC_EXPORT_INTERVAL", "50")
	collector := stack.NewCollector(t)
	t.Run("calls", func(t *testing.T) { produceAllMetrics(t, collector) }) // the end of the subtest exports the last metrics
	made, documented := make(map[string]metricDescription), make(map[string]metricDescription)
	listed := documentedValues(t)
	for _, m := range collector.Metrics() {
		d := metricDescription{m.Kind, m.Unit, m.Description, make(map[string]bool)}
		for _, p := range m.Points {
			for key, value := range p.Attributes {
				d.Attributes[key] = true
				if !listed[key][value] {
					t.Errorf("%s has %s=%q, which is not documented", m.Name, key, value)
				}
			}
		}
		made[m.Name] = d
	}
	for _, row := range telemetrytest.Documented(t, "../../docs/telemetry.md", "Metrics") {
		d := metricDescription{row[1], strings.Trim(row[2], "`"), row[4], make(map[string]bool)}
		for key := range strings.FieldsSeq(row[3]) {
			d.Attributes[strings.Trim(key, "`")] = true
		}
		documented[row[0]] = d
	}
	if diff := cmp.Diff(documented, made); diff != "" {
		t.Errorf("metrics (-documented +made):\n%s", diff)
	}
}

type metricDescription struct {
	Kind, Unit, Description string
	Attributes              map[string]bool
}

// documentedValues returns the attribute values that docs/telemetry.md lists, grouped by attribute. A value is a string
// in backquotes. The values of sluice.decision.code also include the codes that the API contract defines.
func documentedValues(t *testing.T) map[string]map[string]bool {
	t.Helper()
	out := make(map[string]map[string]bool)
	for _, row := range telemetrytest.Documented(t, "../../docs/telemetry.md", "Attributes of metrics") {
		of := make(map[string]bool)
		for i, word := range strings.Split(row[1], "`") {
			if i%2 == 1 {
				of[word] = true
			}
		}
		out[row[0]] = of
	}
	for number, name := range commonv1.Code_name {
		if number != 0 {
			out["sluice.decision.code"][strings.ToLower(strings.TrimPrefix(name, "CODE_"))] = true
		}
	}
	return out
}

func produceAllMetrics(t *testing.T, collector *stack.Collector) {
	up := rawmcp.Start(t, `[{"name":"pay","inputSchema":{}},{"name":"free","inputSchema":{}}]`)
	observed := "rules: [{name: watched, match: {tool: free}, action: deny, mode: observe, until: " + time.Now().AddDate(0, 0, 7).Format(time.DateOnly) + "}]\n"
	keys := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"keys":[{"kty":"OKP","crv":"Ed25519","kid":"a","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}`)) // RFC 8037, appendix A.2
	}))
	t.Cleanup(keys.Close)
	s := stack.StartInProcess(t, stack.Options{
		Tokens:  fmt.Sprintf("  issuers: [{name: corp, issuer: https://login.example.com, key_set: %q, audiences: [api]}]\n", keys.URL),
		Servers: fmt.Sprintf("  raw: {http: {url: %q}}\n  far: {http: {url: \"http://127.0.0.1:1/mcp\"}, credentials: {as: shared, oauth: {}}}", up.URL),
		Policy:  "version: 1\nname: p\ndefault: deny\ntools:\n  free: {action: allow, redact: {arguments: {detect: email}}}\n  pay: {action: require_approval}\n" + observed,
		Extra:   fmt.Sprintf("telemetry: {otlp: %q}\napprovals: {hold: 1s}", collector.URL),
	})
	c := stack.Connect(t, s.MCP("raw"), stack.AgentToken)
	c.Call("pay", "{}") // the call is held, and gets a ticket
	c.Call("free", `{"to": "ana@example.com"}`)
	up.Stop()
	c.Call("free", "{}")
	for end := time.Now().Add(20 * time.Second); collector.Counts("sluice.approval.open")["sluice.approval.open{sluice.approval.state=pending}"] != 1; {
		if time.Now().After(end) {
			t.Fatal("the pending approval was not counted")
		}
		<-time.After(10 * time.Millisecond)
	}
	stack.NewClient(t, s.MCP("raw"), "eyJhbGciOiJFZERTQSJ9.eyJpc3MiOiJ4In0.AAAA").Post(`{"jsonrpc":"2.0","id":1,"method":"ping"}`) // its issuer is x
	identities, ctx := identityv1.NewIdentityServiceClient(s.Operator(t)), stack.TimeoutContext(t)
	if _, err := identities.CreateToken(ctx, &identityv1.CreateTokenRequest{Token: &identityv1.Token{
		Name: "cursor", Tenant: "default", Subject: "cursor", Agent: "cursor", Role: authv1.TokenRole_TOKEN_ROLE_AGENT, Expires: timestamppb.New(time.Now().Add(time.Hour)),
	}}); err != nil {
		t.Fatal(err)
	}
	if _, err := identities.RevokeToken(ctx, &identityv1.RevokeTokenRequest{Name: "cursor"}); err != nil {
		t.Fatal(err)
	}
	if _, err := identityv1.NewSessionServiceClient(s.DialWithToken(t, "")).CreateSession(ctx, &identityv1.CreateSessionRequest{
		Issuer: "unknown", Grant: &identityv1.CreateSessionRequest_Jwt{Jwt: "x"},
	}); err == nil {
		t.Fatal("a person has signed in at an unknown issuer")
	}
	eventually.Holds(t, "the age of the keys is exported", func() bool { // the keys are fetched a moment after the start
		return slices.ContainsFunc(collector.Metrics(), func(m stack.Metric) bool { return m.Name == "sluice.issuer.keys.age" })
	})
	people := approvalv1.NewApprovalServiceClient(s.Operator(t))
	list, err := people.ListApprovals(stack.TimeoutContext(t), &approvalv1.ListApprovalsRequest{})
	if err != nil || len(list.GetApprovals()) != 1 {
		t.Fatal(list, err)
	}
	if _, err := people.DecideApproval(stack.TimeoutContext(t), &approvalv1.DecideApprovalRequest{ApprovalId: list.GetApprovals()[0].GetId(), Verdict: approvalv1.Verdict_VERDICT_DENY}); err != nil {
		t.Fatal(err)
	}
}
