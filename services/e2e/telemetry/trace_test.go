package telemetry_test

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"

	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
	"github.com/sluice-mesh/sluice/services/e2e/rawmcp"
	"github.com/sluice-mesh/sluice/services/e2e/rawmesh"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
)

const (
	serverSpan = tracev1.Span_SPAN_KIND_SERVER
	clientSpan = tracev1.Span_SPAN_KIND_CLIENT
	innerSpan  = tracev1.Span_SPAN_KIND_INTERNAL

	// callSpans is the number of spans that an allowed call with a rate limit produces.
	callSpans = 8

	decideRPC  = "sluice.policy.v1.PolicyService/DecideCall"
	reserveRPC = "sluice.ratelimit.v1.RateLimitService/ReserveLimits"
)

// fastSpanExport is an environment variable, with its value, that makes a process export its spans every 50 ms.
const fastSpanExport = "OTEL_BSP_SCHEDULE_DELAY=50"

// clientTraceID is the trace id that a client sends.
const clientTraceID = "0af7651916cd43dd8448eb211c80319c"

var traceParent = regexp.MustCompile(`^00-([0-9a-f]{32})-([0-9a-f]{16})-(0[01])$`)

// sentTraceContext returns the trace context that the server received with the last call to a tool. If the body of the
// call contains a traceparent, sentTraceContext checks that it equals the traceparent header.
func sentTraceContext(t *testing.T, up *rawmcp.Server, tool string) (trace, span, flags string) {
	t.Helper()
	calls := up.Calls(tool)
	if len(calls) == 0 {
		t.Fatalf("no call of %s reached the server", tool)
	}
	last := calls[len(calls)-1]
	parts := traceParent.FindStringSubmatch(last.Header.Get("Traceparent"))
	if parts == nil {
		t.Fatalf("the server received the traceparent %q", last.Header.Get("Traceparent"))
	}
	if bytes.Contains(last.Body, []byte("traceparent")) && !bytes.Contains(last.Body, []byte(parts[0])) {
		t.Errorf("the body and the header have different traces: %s and %s", last.Body, parts[0])
	}
	if strings.Contains(string(last.Body)+fmt.Sprint(last.Header), clientTraceID) {
		t.Errorf("the server received the client's trace: %s %s", last.Header, last.Body)
	}
	return parts[1], parts[2], parts[3]
}

// awaitSpans waits until a trace has n spans.
func awaitSpans(t *testing.T, c *stack.Collector, trace string, n int) []stack.Span {
	t.Helper()
	eventually.Holds(t, fmt.Sprintf("%d spans of trace %s", n, trace), func() bool { return len(c.Spans(trace)) >= n })
	return c.Spans(trace)
}

// findSpan returns the only span with this name, kind and service.
func findSpan(t *testing.T, spans []stack.Span, service, name string, kind tracev1.Span_SpanKind) stack.Span {
	t.Helper()
	var found []stack.Span
	for _, s := range spans {
		if s.Name == name && s.Kind == kind && s.Service == service {
			found = append(found, s)
		}
	}
	if len(found) != 1 {
		t.Fatalf("%d spans %q of kind %s by %s in\n%+v", len(found), name, kind, service, spans)
	}
	return found[0]
}

// checkCallTrace checks the spans of an allowed call with a rate limit. The parent of each span must be the span that
// caused it. The function service returns the service name of the process in which a mesh service runs.
func checkCallTrace(t *testing.T, spans []stack.Span, tool string, service func(role string) string) (root, forward stack.Span) {
	t.Helper()
	if len(spans) != callSpans {
		t.Errorf("the trace has %d spans, want %d:\n%+v", len(spans), callSpans, spans)
	}
	gateway := service("gateway")
	root = findSpan(t, spans, gateway, "tools/call "+tool, serverSpan)
	forward = findSpan(t, spans, gateway, "tools/call "+tool, clientSpan)
	decide := findSpan(t, spans, gateway, decideRPC, clientSpan)
	reserve := findSpan(t, spans, gateway, reserveRPC, clientSpan)
	for _, below := range []struct{ span, parent stack.Span }{
		{forward, root}, {decide, root}, {reserve, root},
		{findSpan(t, spans, gateway, "journal intent", innerSpan), root}, {findSpan(t, spans, gateway, "journal outcome", innerSpan), root},
		{findSpan(t, spans, service("policy"), decideRPC, serverSpan), decide},
		{findSpan(t, spans, service("ratelimit"), reserveRPC, serverSpan), reserve},
	} {
		if below.span.Parent != below.parent.ID {
			t.Errorf("%s (%s, %s) is below %s, want %s (%s)", below.span.Name, below.span.Kind, below.span.Service, below.span.Parent, below.parent.Name, below.parent.ID)
		}
	}
	return root, forward
}

func roleServiceName(role string) string { return "sluice-" + role }

func meshServiceName(string) string { return "sluice" }

func telemetryConfig(c *stack.Collector, more string) string {
	return fmt.Sprintf("telemetry: {otlp: %q, %s}", c.URL, more)
}

func TestTrace_OneTraceThroughDistributedRoles(t *testing.T) {
	t.Parallel()
	c := stack.NewCollector(t)
	a := rawmesh.StartDistributed(t, rawmesh.StoryPolicy, telemetryConfig(c, "sample: 1"), fastSpanExport)
	if resp := a.Connect(t).Call("limited", "{}"); resp.IsError(t) {
		t.Fatalf("%s", resp.Body)
	}
	trace, parent, flags := sentTraceContext(t, a.Upstream, "limited")
	root, forward := checkCallTrace(t, awaitSpans(t, c, trace, callSpans), "limited", roleServiceName)
	if root.Parent != "" || len(root.Links) != 0 || parent != forward.ID || flags != "01" {
		t.Errorf("the root span has the parent %q and the links %v; the server received the parent %s and the flags %s, want %s and 01", root.Parent, root.Links, parent, flags, forward.ID)
	}
	checkRecordsHaveTrace(t, a.Records(t), trace)
}

// checkRecordsHaveTrace checks that a call's intent and outcome contain its trace id.
func checkRecordsHaveTrace(t *testing.T, records []*gatewayv1.Record, trace string) {
	t.Helper()
	kinds := make(map[gatewayv1.RecordKind]int)
	for _, r := range records {
		if r.GetTraceId() == trace {
			kinds[r.GetKind()]++
		}
	}
	if kinds[gatewayv1.RecordKind_RECORD_KIND_INTENT] != 1 || kinds[gatewayv1.RecordKind_RECORD_KIND_OUTCOME] != 1 {
		t.Errorf("the journal has %[2]v of trace %[1]s, want an intent and an outcome", trace, kinds)
	}
}

func TestTrace_OneTraceThroughOneProcess(t *testing.T) {
	t.Parallel()
	c := stack.NewCollector(t)
	f := rawmesh.Start(t, rawmesh.StoryPolicy, telemetryConfig(c, "sample: 1"))
	if resp := f.Connect(t).Call("limited", "{}"); resp.IsError(t) {
		t.Fatalf("%s", resp.Body)
	}
	trace, parent, _ := sentTraceContext(t, f.Upstream, "limited")
	_, forward := checkCallTrace(t, awaitSpans(t, c, trace, callSpans), "limited", meshServiceName)
	if parent != forward.ID {
		t.Errorf("the server received the parent %s, want %s", parent, forward.ID)
	}
	checkRecordsHaveTrace(t, f.Records(t), trace)
}

// callsWithClientTrace returns functions that make a call with a client's trace context. The key of each function says
// which part of the request contains the trace context.
func callsWithClientTrace(c *stack.Client) map[string]func() stack.Response {
	parent := "00-" + clientTraceID + "-b7ad6b7169203331-01"
	withHeader := *c
	withHeader.Header = http.Header{"Traceparent": {parent}, "Tracestate": {"vendor=x"}}
	meta := `{"name":"limited","_meta":{"traceparent":"` + parent + `","tracestate":"vendor=x","baggage":"user=root"}}`
	return map[string]func() stack.Response{
		"in the head": func() stack.Response { return withHeader.Call("limited", "{}") },
		"in _meta":    func() stack.Response { return c.Post(stack.CallRequest(meta)) },
	}
}

// By default the gateway does not continue a client's trace. It starts a new trace that links to the client's trace.
func TestTrace_ClientTraceIsLinkedAndReplaced(t *testing.T) {
	t.Parallel()
	c := stack.NewCollector(t)
	f := rawmesh.Start(t, rawmesh.StoryPolicy, telemetryConfig(c, "sample: 1"))
	f.Connect(t).Call("safe", "{}") // adds the server to the catalog, so that the policy revision does not change later
	for name, send := range callsWithClientTrace(f.Connect(t)) {
		if resp := send(); resp.IsError(t) {
			t.Fatalf("%s: %s", name, resp.Body)
		}
		trace, parent, _ := sentTraceContext(t, f.Upstream, "limited")
		root, forward := checkCallTrace(t, awaitSpans(t, c, trace, callSpans), "limited", meshServiceName)
		if root.Parent != "" || !slices.Equal(root.Links, []string{clientTraceID}) || parent != forward.ID {
			t.Errorf("%s: the root span has the parent %q and the links %v, want no parent and a link to the client's trace", name, root.Parent, root.Links)
		}
	}
	if spans := c.Spans(clientTraceID); len(spans) > 0 {
		t.Errorf("%d spans are in the client's trace", len(spans))
	}
}

// With the setting trust_parent, the gateway continues the client's trace: the client's span is the parent of the
// gateway's span.
func TestTrace_TrustedClientTraceIsContinued(t *testing.T) {
	t.Parallel()
	c := stack.NewCollector(t)
	f := rawmesh.Start(t, rawmesh.StoryPolicy, telemetryConfig(c, "sample: 0, trust_parent: true")) // the client's sampling decision applies
	head := callsWithClientTrace(f.Connect(t))["in the head"]
	if resp := head(); resp.IsError(t) {
		t.Fatalf("%s", resp.Body)
	}
	root, forward := checkCallTrace(t, awaitSpans(t, c, clientTraceID, 6), "limited", meshServiceName)
	if root.Parent != "b7ad6b7169203331" || len(root.Links) != 0 {
		t.Errorf("the root span has the parent %q and the links %v, want the client's span as the parent", root.Parent, root.Links)
	}
	if got, want := f.Upstream.Calls("limited")[0].Header.Get("Traceparent"), "00-"+clientTraceID+"-"+forward.ID+"-01"; got != want {
		t.Errorf("the server received %s, want %s", got, want)
	}
}

// A trace that is not sampled is not exported. Nevertheless, its id is sent to the server and recorded.
func TestTrace_UnsampledTraceHasAnID(t *testing.T) {
	t.Parallel()
	c := stack.NewCollector(t)
	a := rawmesh.StartDistributed(t, rawmesh.StoryPolicy, telemetryConfig(c, "sample: 0"), fastSpanExport)
	sends := callsWithClientTrace(a.Connect(t))
	for _, name := range slices.Sorted(maps.Keys(sends)) {
		if resp := sends[name](); resp.IsError(t) {
			t.Fatalf("%s: %s", name, resp.Body)
		}
		trace, _, flags := sentTraceContext(t, a.Upstream, "limited")
		if trace == clientTraceID || flags != "00" {
			t.Errorf("%s: the server received the trace %s and the flags %s", name, trace, flags)
		}
		checkRecordsHaveTrace(t, a.Records(t), trace)
	}
	for _, role := range authn.Roles() {
		if err := a.Stop(t, role); err != nil { // a stop exports pending spans
			t.Errorf("%s stopped with %v", authn.RoleName(role), err)
		}
	}
	if spans := c.Spans(""); len(spans) > 0 {
		t.Errorf("%d spans were exported: %+v", len(spans), spans[0])
	}
}

// Spans have exactly the attributes that docs/telemetry.md lists.
func TestTrace_SpansHaveTheDocumentedAttributes(t *testing.T) {
	t.Parallel()
	c := stack.NewCollector(t)
	f := rawmesh.Start(t, rawmesh.StoryPolicy, telemetryConfig(c, "sample: 1"))
	cl := f.Connect(t)
	session := onlySessionDigest(t, f)
	passed := cl.Post(`{"jsonrpc":"2.0","id":"seven","method":"tools/call","params":{"name":"limited","arguments":{}}}`)
	trace, _, _ := sentTraceContext(t, f.Upstream, "limited")
	f.Upstream.SetAnswer("safe", rawmcp.Result(`{"content":[],"isError":true}`))
	failed := cl.Call("safe", "{}")
	failedTrace, _, _ := sentTraceContext(t, f.Upstream, "safe")
	denied := cl.Call("danger", "{}")
	for name, resp := range map[string]stack.Response{"limited": passed, "safe": failed, "danger": denied} {
		if resp.Status != http.StatusOK {
			t.Fatalf("%s: %d %s", name, resp.Status, resp.Body)
		}
	}
	eventually.Holds(t, "the spans arrive", func() bool {
		return slices.ContainsFunc(c.Spans(""), func(s stack.Span) bool { return s.Name == "tools/call danger" })
	})
	revision := denied.Decision(t).PolicyRevision
	usual := func(tool, id string) map[string]string {
		return map[string]string{
			"mcp.method.name": "tools/call", "mcp.protocol.version": "2025-11-25", "mcp.session.id": session,
			"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": tool, "jsonrpc.request.id": id,
			"network.transport": "tcp", "sluice.server": "raw",
		}
	}
	with := func(base map[string]string, more ...string) map[string]string {
		for i := 0; i < len(more); i += 2 {
			base[more[i]] = more[i+1]
		}
		return base
	}
	tests := []struct {
		trace, tool string
		kind        tracev1.Span_SpanKind
		want        map[string]string
	}{
		{trace, "limited", serverSpan, with(usual("limited", "seven"),
			"sluice.decision.effect", "allow", "sluice.decision.rule", "story/tools.limited", "sluice.policy.revision", revision,
			"sluice.limiter.key", "session", "sluice.limiter.remaining", "9")},
		{trace, "limited", clientSpan, usual("limited", "seven")},
		{failedTrace, "safe", serverSpan, with(usual("safe", "1"),
			"sluice.decision.effect", "allow", "sluice.decision.rule", "story/tools.safe", "sluice.policy.revision", revision, "error.type", "tool_error")},
		{failedTrace, "safe", clientSpan, with(usual("safe", "1"), "error.type", "tool_error")},
		{"", "danger", serverSpan, with(usual("danger", "1"),
			"sluice.decision.effect", "deny", "sluice.decision.code", "denied_by_rule", "sluice.decision.rule", "story/tools.danger",
			"sluice.policy.revision", revision, "error.type", "tool_error")},
	}
	for _, tt := range tests {
		got := findSpan(t, c.Spans(tt.trace), "sluice", "tools/call "+tt.tool, tt.kind).Attributes
		delete(got, "sluice.decision.id")
		if !maps.Equal(got, tt.want) {
			t.Errorf("%s, %s:\n got %v\nwant %v", tt.tool, tt.kind, got, tt.want)
		}
	}
}

// onlySessionDigest returns the digest of the only session that is open.
func onlySessionDigest(t *testing.T, f *rawmesh.Mesh) string {
	t.Helper()
	resp, err := gatewayv1.NewGatewayServiceClient(f.Operator(t)).ListSessions(stack.TimeoutContext(t), new(gatewayv1.ListSessionsRequest))
	if err != nil || len(resp.GetSessions()) != 1 {
		t.Fatalf("%v, %v", resp, err)
	}
	return resp.GetSessions()[0].GetDigest()
}

// Case S1. No span, metric, log line or record contains arguments, results, errors, tokens or session ids.
func TestTelemetry_HasNoSecrets(t *testing.T) {
	t.Parallel()
	const canary = "canary-51d0c3"
	c := stack.NewCollector(t)
	a := rawmesh.StartDistributed(t, rawmesh.StoryPolicy, telemetryConfig(c, "sample: 1")+"\napprovals: {hold: 0s}", fastSpanExport)
	cl := a.Connect(t)
	cl.Header = http.Header{"X-Secret": {canary}, "Cookie": {canary}}
	arguments := `{"path":"` + canary + `","` + canary + `":{"deep":["` + canary + `"]}}`
	a.Upstream.SetAnswer("limited", rawmcp.Result(`{"content":[{"type":"text","text":"`+canary+`"}],"isError":true}`))
	a.Upstream.SetAnswer("safe", func(w http.ResponseWriter, _ *http.Request, _ string) {
		http.Error(w, canary, http.StatusInternalServerError)
	})
	for _, tool := range []string{"limited", "safe", "danger", "secret", "pay"} {
		cl.Call(tool, arguments)
	}
	cl.Post(stack.CallRequest(`{"name":"safe","arguments":{},"_meta":{"x":"` + canary + `","progressToken":"` + canary + `"}}`))
	cl.Post(stack.CallRequest(`{"name":"safe","arguments":["` + canary + `"]}`))
	cl.Post(`{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"cursor":"` + canary + `"}}`)
	cl.Post(`{"` + canary)
	cl.WithToken(canary).Call("safe", "{}")
	for _, role := range authn.Roles() {
		if err := a.Stop(t, role); err != nil {
			t.Errorf("%s stopped with %v", authn.RoleName(role), err)
		}
	}
	if len(c.Spans("")) < 10 {
		t.Errorf("only %d spans were exported", len(c.Spans("")))
	}
	places, seen := map[string][]byte{"spans and metrics": c.Raw()}, make(map[string]bool)
	for _, role := range authn.Roles() {
		places["the log of "+authn.RoleName(role)] = []byte(a.Log(role))
	}
	err := filepath.WalkDir(filepath.Join(a.Dir, "data"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() { // compiled guests can be a symbolic link to a shared directory
			return err
		}
		places[path], err = os.ReadFile(path)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	known := []string{"denied_by_rule", "serving gRPC", "gen_ai.tool.name", "mcp.server.operation.duration", "sluice.approval.decisions"}
	secrets := []string{canary, cl.Session(), stack.AgentToken, stack.OperatorToken, "raw-session"}
	for place, text := range places {
		for _, known := range known {
			seen[known] = seen[known] || bytes.Contains(text, []byte(known))
		}
		for _, secret := range secrets {
			if secret == canary && strings.Contains(place, "approvals.db") {
				continue // the approval store contains the call, because approvers decide on it, but no token
			}
			for form, found := range map[string]string{"as it is": secret, "in hexadecimal": hex.EncodeToString([]byte(secret))} {
				if at := bytes.Index(text, []byte(found)); at >= 0 {
					t.Errorf("%s has %q, %s: …%q…", place, secret, form, text[max(0, at-60):min(len(text), at+60)])
				}
			}
		}
	}
	for _, known := range known {
		if !seen[known] {
			t.Errorf("the journal, the logs, the spans or the metrics were not read: none of them has %q", known)
		}
	}
}
