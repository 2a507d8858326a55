package telemetry

import (
	"context"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// TraceParent returns a span's context in the form of W3C Trace Context, in 55 bytes, even if it is not sampled, so
// that journals, approvals and servers name the same trace. It is empty if there is no trace.
func TraceParent(span trace.SpanContext) string {
	if !span.IsValid() {
		return ""
	}
	return "00-" + span.TraceID().String() + "-" + span.SpanID().String() + "-" + span.TraceFlags().String()
}

// Link links a span to the one that parent, a result of [TraceParent], names. It does nothing if parent names none or
// one of the span's own trace, or if the span is not sampled.
func Link(span trace.Span, parent string) {
	if parent == "" || !span.IsRecording() {
		return
	}
	to := trace.SpanContextFromContext(propagation.TraceContext{}.Extract(context.Background(), propagation.MapCarrier{"traceparent": parent}))
	if to.IsValid() && to.TraceID() != span.SpanContext().TraceID() {
		span.AddLink(trace.Link{SpanContext: to})
	}
}
