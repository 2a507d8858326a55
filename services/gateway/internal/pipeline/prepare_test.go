package pipeline_test

import (
	"context"
	"strings"
	"testing"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/pipeline"
)

func startSpan(t testing.TB) (context.Context, trace.SpanContext) {
	t.Helper()
	ctx, span := sdktrace.NewTracerProvider().Tracer("test").Start(t.Context(), "test")
	t.Cleanup(func() { span.End() })
	return ctx, span.SpanContext()
}

// The bytes that the server receives are the bytes that the policy service has evaluated, except for this project's
// `_meta` keys and the trace context.
func TestPrepare_SendsTheJudgedBytes(t *testing.T) {
	t.Parallel()
	_, span := startSpan(t)
	ours := "00-" + span.TraceID().String() + "-" + span.SpanID().String() + "-01"
	tests := []struct{ name, body, want string }{
		{"as it came", "{ \"jsonrpc\":\"2.0\",\n\"id\":\"\\u0061\",\"method\":\"ping\"}", "{ \"jsonrpc\":\"2.0\",\n\"id\":\"\\u0061\",\"method\":\"ping\"}"},
		{
			"our own keys go", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","_meta":{"dev.sluice/run":"r","keep":1,"dev.sluice/approval":"a"}}}`,
			`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","_meta":{"keep":1}}}`,
		},
		{
			"a client's trace context becomes ours, its state and baggage go",
			`{"jsonrpc":"2.0","id":1,"method":"ping","params":{"_meta":{"traceparent":"00-11111111111111111111111111111111-2222222222222222-01","tracestate":"a=b","baggage":"c=d"}}}`,
			`{"jsonrpc":"2.0","id":1,"method":"ping","params":{"_meta":{"traceparent":"` + ours + `"}}}`,
		},
		{
			"what goes before it moves the progress token", `{"jsonrpc":"2.0","id":1,"method":"ping","params":{"_meta":{"dev.sluice/run":"r","progressToken":"\u0061"}}}`,
			`{"jsonrpc":"2.0","id":1,"method":"ping","params":{"_meta":{"progressToken":"\u0061"}}}`,
		},
		{"none is added", `{"jsonrpc":"2.0","id":1,"method":"ping","params":{"_meta":{}}}`, `{"jsonrpc":"2.0","id":1,"method":"ping","params":{"_meta":{}}}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			m := parse(t, tt.body)
			got, err := pipeline.Prepare(m, span, nil)
			if err != nil {
				t.Fatal(err)
			}
			if string(got.Body()) != tt.want || got.TraceParent != ours {
				t.Errorf("got %s, %s\nwant %s", got.Body(), got.TraceParent, tt.want)
			}
			if string(got.ID()) != string(m.ID.Of(m.Raw)) {
				t.Errorf("the id is %s", got.ID())
			}
			if got, want := got.Message.Meta.ProgressToken.Of(got.Body()), m.Meta.ProgressToken.Of(m.Raw); string(got) != string(want) {
				t.Errorf("the progress token is %s, want %s", got, want)
			}
		})
	}
}

// A message of the maximum size is accepted, even after Prepare has added members to it.
func TestPrepare_AcceptsParsedMessages(t *testing.T) {
	t.Parallel()
	_, span := startSpan(t)
	frame := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","_meta":{"traceparent":"x"},"arguments":{"a":""}}}`
	body := strings.Replace(frame, `"a":""`, `"a":"`+strings.Repeat("x", jsonrpc.DefaultLimits().Bytes-len(frame))+`"`, 1)
	if _, err := pipeline.Prepare(parse(t, body), span, nil); err != nil {
		t.Error(err)
	}
}

func TestPrepare_WithoutATrace(t *testing.T) {
	t.Parallel()
	got, err := pipeline.Prepare(parse(t, `{"jsonrpc":"2.0","id":1,"method":"ping","params":{"_meta":{"traceparent":"x"}}}`), trace.SpanContext{}, nil)
	if err != nil || got.TraceParent != "" || strings.Contains(string(got.Body()), "traceparent") {
		t.Errorf("%s %q %v", got.Body(), got.TraceParent, err)
	}
}
