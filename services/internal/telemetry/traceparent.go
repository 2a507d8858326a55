package telemetry

import (
	"context"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// TraceParent returns a span's context as W3C Trace Context writes it, in 55 bytes, also
// where it is not sampled: journals, approvals and upstreams are to name the same trace.
// It is empty where there is no trace.
func TraceParent(span trace.SpanContext) string {
	if !span.IsValid() {
		return ""
	}
	return "00-" + span.TraceID().String() + "-" + span.SpanID().String() + "-" + span.TraceFlags().String()
}

// Link links a span to the one that parent names, as [TraceParent] has written it. It
// does nothing where parent names none, or one of the span's own trace, and where the
// span is not sampled: then it costs a look.
func Link(span trace.Span, parent string) {
	if parent == "" || !span.IsRecording() {
		return
	}
	to := trace.SpanContextFromContext(propagation.TraceContext{}.Extract(context.Background(), propagation.MapCarrier{"traceparent": parent}))
	if to.IsValid() && to.TraceID() != span.SpanContext().TraceID() {
		span.AddLink(trace.Link{SpanContext: to})
	}
}
