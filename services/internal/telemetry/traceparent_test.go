package telemetry_test

import (
	"strings"
	"testing"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/sluice-mesh/sluice/services/internal/telemetry"
)

// Link links a span to a span in another trace, whether or not the other span is sampled. It adds no link if the parent
// is empty, invalid or in the same trace.
func TestLink(t *testing.T) {
	t.Parallel()
	recorder := tracetest.NewSpanRecorder()
	tracer := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder)).Tracer("test")
	_, unsampled := sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.NeverSample())).Tracer("test").Start(t.Context(), "x")
	other := telemetry.TraceParent(unsampled.SpanContext())
	if len(other) != 55 || telemetry.TraceParent(trace.SpanContext{}) != "" {
		t.Fatalf("the parents are %q, %q", other, telemetry.TraceParent(trace.SpanContext{}))
	}
	telemetry.Link(unsampled, other) // an unsampled span stores no links
	_, span := tracer.Start(t.Context(), "x")
	for _, parent := range []string{"", "what", other[:54], strings.Replace(other, "00-", "ff-", 1), telemetry.TraceParent(span.SpanContext()), other} {
		telemetry.Link(span, parent)
	}
	span.End()
	links := recorder.Ended()[0].Links()
	if len(links) != 1 || telemetry.TraceParent(links[0].SpanContext) != other {
		t.Errorf("the links are %v, want one to %s", links, other)
	}
}
