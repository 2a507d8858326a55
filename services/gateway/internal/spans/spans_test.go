package spans_test

import (
	"maps"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	ratelimitv1 "github.com/sluice-mesh/sluice/gen/sluice/ratelimit/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/spans"
	"github.com/sluice-mesh/sluice/services/internal/journal"
)

// described calls the function describe with a span, and returns the attributes and the status that describe has set on
// the span.
func described(t *testing.T, describe func(trace.Span)) (map[string]string, sdktrace.Status) {
	t.Helper()
	recorder := tracetest.NewSpanRecorder()
	_, span := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder)).Tracer("").Start(t.Context(), "x")
	describe(span)
	span.End()
	got := make(map[string]string)
	for _, a := range recorder.Ended()[0].Attributes() {
		got[string(a.Key)] = a.Value.String()
	}
	return got, recorder.Ended()[0].Status()
}

func parse(t *testing.T, text string) *jsonrpc.Message {
	t.Helper()
	m, err := jsonrpc.Parse([]byte(text), jsonrpc.DefaultLimits())
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestMessage_SetsAttributes(t *testing.T) {
	t.Parallel()
	const server = "sluice.server"
	tests := []struct {
		text, name string
		want       map[string]string
	}{
		{
			`{"jsonrpc":"2.0","id":"a\"b","method":"tools/call","params":{"name":"safe","arguments":{"x":"secret"}}}`, "tools/call safe",
			map[string]string{"mcp.method.name": "tools/call", "gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "safe", "jsonrpc.request.id": `a"b`, "network.transport": "pipe", server: "s"},
		},
		{
			`{"jsonrpc":"2.0","id":7,"method":"prompts/get","params":{"name":"secret"}}`, "prompts/get",
			map[string]string{"mcp.method.name": "prompts/get", "jsonrpc.request.id": "7", "network.transport": "pipe", server: "s"},
		},
		{
			`{"jsonrpc":"2.0","method":"notifications/initialized"}`, "notifications/initialized",
			map[string]string{"mcp.method.name": "notifications/initialized", "network.transport": "pipe", server: "s"},
		},
		{`{"jsonrpc":"2.0","id":1,"result":{"x":"secret"}}`, "response", map[string]string{"jsonrpc.request.id": "1", "network.transport": "pipe", server: "s"}},
	}
	for _, tt := range tests {
		m := parse(t, tt.text)
		got, _ := described(t, func(s trace.Span) { spans.Message(s, m, spans.Place{Server: "s", Transport: "pipe"}) })
		if name := spans.Name(m); name != tt.name || !maps.Equal(got, tt.want) {
			t.Errorf("%s: %q, %v, want %q, %v", tt.text, name, got, tt.name, tt.want)
		}
	}
}

func TestName_IsShortAndValid(t *testing.T) {
	t.Parallel()
	m := &jsonrpc.Message{Method: "tools/call", Name: strings.Repeat("é", 1000) + "\xff"}
	if name := spans.Name(m); !utf8.ValidString(name) || len(name) > 200 {
		t.Errorf("the name is %q", name)
	}
}

func TestAnswer_SetsErrorType(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]map[string]string{
		`{"jsonrpc":"2.0","id":1,"result":{}}`:                                         {},
		`{"jsonrpc":"2.0","id":1,"result":{"isError":true}}`:                           {"error.type": "tool_error"},
		`{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"secret"}}`:          {"error.type": "-32602", "rpc.response.status_code": "-32602"},
		`{"jsonrpc":"2.0","id":1,"error":{"code":1e300,"message":"","data":"secret"}}`: {"error.type": "-32600", "rpc.response.status_code": "-32600"},
	} {
		a, err := jsonrpc.ReadAnswer([]byte(text), jsonrpc.AnswerLimits())
		if err != nil {
			t.Fatal(err)
		}
		if got, status := described(t, func(s trace.Span) { spans.Answer(s, a) }); !maps.Equal(got, want) || status.Code != codes.Unset {
			t.Errorf("%s: %v, %v, want %v", text, got, status, want)
		}
	}
	if got, status := described(t, func(s trace.Span) { spans.Failed(s, "upstream_timeout") }); got["error.type"] != "upstream_timeout" || status.Code != codes.Error {
		t.Errorf("failed: %v, %v", got, status)
	}
}

func TestDecision_SetsAttributes(t *testing.T) {
	t.Parallel()
	decision := &policyv1.Decision{
		Rule: &policyv1.RuleRef{Document: "d", Rule: "r"}, PolicyRevision: "rev", Message: "secret",
		Limits: []*policyv1.RuleLimit{
			{Limit: &ratelimitv1.Limit{Bucket: "b"}}, {Limit: &ratelimitv1.Limit{Bucket: "secret"}, SessionKey: policyv1.SessionKey_SESSION_KEY_RUN},
		},
	}
	lease := &ratelimitv1.Lease{Tightest: 1, Remaining: []*ratelimitv1.Remaining{{Remaining: "5"}, {Remaining: "2"}}}
	invalid := &ratelimitv1.Lease{Tightest: -1}
	base := map[string]string{"sluice.decision.id": "id", "sluice.decision.effect": "allow", "sluice.decision.rule": "d/r", "sluice.policy.revision": "rev"}
	limited := maps.Clone(base)
	limited["sluice.limiter.key"], limited["sluice.limiter.remaining"] = "run", "2"
	refused := map[string]string{"sluice.decision.id": "id", "sluice.decision.effect": "deny", "sluice.decision.code": "policy_unavailable"}
	for name, tt := range map[string]struct {
		code  string
		d     *policyv1.Decision
		lease *ratelimitv1.Lease
		want  map[string]string
	}{
		"allowed": {"", decision, nil, base}, "limited": {"", decision, lease, limited}, "a lease that makes no sense": {"", decision, invalid, base},
		"nobody decided": {"policy_unavailable", nil, nil, refused},
	} {
		got, _ := described(t, func(s trace.Span) { spans.Decision(s, "id", tt.code, tt.d, tt.lease) })
		if !maps.Equal(got, tt.want) {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
}

func TestObserved_SetsAttributes(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		would journal.Observed
		want  map[string]string
	}{
		"by a rule": {
			journal.Observed{Effect: "would_limit", Code: "rate_limited", Rule: journal.Rule{Document: "d", Rule: "r"}},
			map[string]string{"sluice.observed.effect": "would_limit", "sluice.observed.code": "rate_limited", "sluice.observed.rule": "d/r"},
		},
		"by a default": {journal.Observed{Effect: "would_allow"}, map[string]string{"sluice.observed.effect": "would_allow"}},
	} {
		if got, _ := described(t, func(s trace.Span) { spans.Observed(s, tt.would) }); !maps.Equal(got, tt.want) {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
}

func TestApproval_SetsAttributes(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		id   string
		held time.Duration
		want map[string]string
	}{
		"none":     {"", time.Second, map[string]string{}},
		"not held": {"a-1", 0, map[string]string{"sluice.approval.id": "a-1"}},
		"held":     {"a-1", 1500 * time.Millisecond, map[string]string{"sluice.approval.id": "a-1", "sluice.approval.wait": "1.5"}},
	} {
		if got, _ := described(t, func(s trace.Span) { spans.Approval(s, tt.id, tt.held) }); !maps.Equal(got, tt.want) {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
}

// A span that is not sampled gets no attributes, because setting them takes time.
func TestMessage_SetsNothingOnUnsampledSpans(t *testing.T) {
	t.Parallel()
	span := untouched{trace.SpanFromContext(t.Context()), t}
	m := parse(t, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"safe"}}`)
	spans.Message(span, m, spans.Place{Server: "s", Version: "v", Session: "d"})
	spans.Decision(span, "id", "code", nil, nil)
	spans.Approval(span, "a-1", time.Second)
	spans.Observed(span, journal.Observed{Effect: "would_deny"})
}

// untouched is a span that is not recorded. It fails the test if an attribute is set.
type untouched struct {
	trace.Span
	t *testing.T
}

func (u untouched) SetAttributes(...attribute.KeyValue) { u.t.Error("it was described") }

func FuzzClip(f *testing.F) {
	f.Add("x")
	f.Add(strings.Repeat("é", 100))
	f.Add("\xff\xfe")
	f.Fuzz(func(t *testing.T, text string) {
		got := spans.Clip(text)
		if !utf8.ValidString(got) || len(got) > 3*128+len("…") || len(text) <= 128 && utf8.ValidString(text) && got != text {
			t.Errorf("%q became %q", text, got)
		}
	})
}
