package rpc_test

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/metadata"

	"github.com/sluice-mesh/sluice/services/internal/rpc"
	"github.com/sluice-mesh/sluice/services/internal/telemetry/telemetrytest"
)

// tracing is a test server that records spans and the trace contexts that its handlers receive.
type tracing struct {
	*testServer
	spans *tracetest.InMemoryExporter
	tp    *sdktrace.TracerProvider
	saw   chan trace.SpanContext
}

func newTracing(t *testing.T, err error) *tracing {
	t.Helper()
	tr := &tracing{spans: tracetest.NewInMemoryExporter(), saw: make(chan trace.SpanContext, 1)}
	tr.tp = sdktrace.NewTracerProvider(sdktrace.WithSyncer(tr.spans), sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.AlwaysSample())))
	tr.testServer = &testServer{
		tokens:      newTokens(t),
		serverTrace: rpc.ServerTrace(tr.tp, propagation.TraceContext{}),
		clientTrace: rpc.ClientTrace(tr.tp, propagation.TraceContext{}),
	}
	tr.start(t, probeOf(func(ctx context.Context, _ string) error {
		select {
		case tr.saw <- trace.SpanContextFromContext(ctx):
		case <-ctx.Done(): // the method was called twice
		}
		return err
	}).register(t))
	return tr
}

// remoteSpanContext returns the span context of a trace that another system has started.
func remoteSpanContext(flags trace.TraceFlags) trace.SpanContext {
	return trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: flags})
}

func TestTrace_SampledCallHasClientAndServerSpan(t *testing.T) {
	t.Parallel()
	for name, err := range map[string]error{"answered": nil, "failed": errors.New("ill")} {
		tr := newTracing(t, err)
		for _, w := range tr.paths() {
			t.Run(name+" "+w.name, func(t *testing.T) {
				tr.spans.Reset()
				ctx := trace.ContextWithSpanContext(timeoutContext(t), remoteSpanContext(trace.FlagsSampled))
				if _, got := ask(ctx, w.as(t, gateway, false), methodUnary); (got == nil) != (err == nil) {
					t.Fatal(got)
				}
				saw := <-tr.saw
				waitFor(t, func() bool { return len(tr.spans.GetSpans()) == 2 })
				server, client := tr.spans.GetSpans()[0], tr.spans.GetSpans()[1]
				if server.SpanKind != trace.SpanKindServer {
					server, client = client, server
				}
				if server.SpanKind != trace.SpanKindServer || client.SpanKind != trace.SpanKindClient {
					t.Errorf("the spans are %v and %v", server.SpanKind, client.SpanKind)
				}
				for _, span := range []tracetest.SpanStub{server, client} {
					if want := methodUnary[1:]; span.Name != want || span.SpanContext.TraceID() != (trace.TraceID{1}) {
						t.Errorf("%s of trace %s, want %s of the caller's", span.Name, span.SpanContext.TraceID(), want)
					}
					if failed := span.Status.Code == codes.Error; failed != (err != nil) {
						t.Errorf("the %v span ended with %v", span.SpanKind, span.Status)
					}
				}
				if client.Parent.SpanID() != (trace.SpanID{2}) || server.Parent.SpanID() != client.SpanContext.SpanID() || !server.Parent.IsRemote() {
					t.Errorf("parents are %s and %s, want the caller's span and then the client's", client.Parent.SpanID(), server.Parent.SpanID())
				}
				if saw.SpanID() != server.SpanContext.SpanID() {
					t.Errorf("the handler ran in span %s, want the server's", saw.SpanID())
				}
			})
		}
	}
}

// The tracing library sets only those attributes of calls that docs/telemetry.md lists.
func TestTrace_AttributesAreDocumented(t *testing.T) {
	t.Parallel()
	tr := newTracing(t, nil)
	for _, w := range tr.paths() {
		ctx := trace.ContextWithSpanContext(timeoutContext(t), remoteSpanContext(trace.FlagsSampled))
		if _, err := ask(ctx, w.as(t, gateway, false), methodUnary); err != nil {
			t.Fatal(err)
		}
		<-tr.saw
	}
	waitFor(t, func() bool { return len(tr.spans.GetSpans()) == 2*len(tr.paths()) })
	made, documented := make(map[string]bool), make(map[string]bool)
	for _, span := range tr.spans.GetSpans() {
		for _, a := range span.Attributes {
			made[string(a.Key)] = true
		}
	}
	for _, row := range telemetrytest.Documented(t, "../../../docs/telemetry.md", "Attributes of spans between services") {
		documented[row[0]] = true
	}
	if diff := cmp.Diff(documented, made); diff != "" {
		t.Errorf("attributes (-documented +made):\n%s", diff)
	}
}

// A call has a trace that is not sampled. No spans are created, and the trace id is forwarded.
func TestTrace_UnsampledCallPassesContextOn(t *testing.T) {
	t.Parallel()
	tr := newTracing(t, nil)
	for _, w := range tr.paths() {
		if _, err := ask(trace.ContextWithSpanContext(timeoutContext(t), remoteSpanContext(0)), w.as(t, gateway, false), methodUnary); err != nil {
			t.Fatal(err)
		}
		if saw := <-tr.saw; saw.TraceID() != (trace.TraceID{1}) || saw.IsSampled() {
			t.Errorf("%s: the handler saw the trace %s, sampled %t; want the caller's, not sampled", w.name, saw.TraceID(), saw.IsSampled())
		}
		if _, err := ask(timeoutContext(t), w.as(t, gateway, false), methodUnary); err != nil {
			t.Fatal(err)
		}
		if saw := <-tr.saw; saw.IsValid() {
			t.Errorf("%s: the handler saw the trace %s of a call without one", w.name, saw.TraceID())
		}
	}
	if spans := tr.spans.GetSpans(); len(spans) > 0 {
		t.Errorf("%d spans were made: %v", len(spans), spans[0].Name)
	}
}

// A caller that is not a service of the mesh sends a trace context. No trace is started.
func TestTrace_UntrustedCallerCannotStartTrace(t *testing.T) {
	t.Parallel()
	tr := newTracing(t, nil)
	ctx := metadata.AppendToOutgoingContext(timeoutContext(t), "traceparent", "00-01000000000000000000000000000000-0200000000000000-01")
	if _, err := ask(ctx, tr.person(t, tokenText(operator)), methodUnary); err != nil {
		t.Fatal(err)
	}
	if saw := <-tr.saw; saw.IsValid() {
		t.Errorf("an operator's traceparent was believed: %s", saw.TraceID())
	}
	if _, err := ask(ctx, tr.person(t, ""), methodUnary); err == nil {
		t.Fatal("no call was admitted")
	}
	if spans := tr.spans.GetSpans(); len(spans) > 0 {
		t.Errorf("%d spans were made: %v", len(spans), spans[0].Name)
	}
}
