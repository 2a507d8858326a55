package telemetry

import (
	"context"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// TraceParent returns the context of a span as a W3C Trace Context traceparent of 55 bytes. It returns a traceparent
// even if the span is not sampled, so that journals, approvals and servers refer to the same trace. It returns "" if
// there is no trace.
func TraceParent(span trace.SpanContext) string {
	if !span.IsValid() {
		return ""
	}
	return "00-" + span.TraceID().String() + "-" + span.SpanID().String() + "-" + span.TraceFlags().String()
}

// Link links a span to the span to which parent refers. parent is a result of [TraceParent]. Link does nothing if
// parent refers to no span or to a span of the same trace, or if the given span is not sampled.
func Link(span trace.Span, parent string) {
	if parent == "" || !span.IsRecording() {
		return
	}
	to := trace.SpanContextFromContext(propagation.TraceContext{}.Extract(context.Background(), propagation.MapCarrier{"traceparent": parent}))
	if to.IsValid() && to.TraceID() != span.SpanContext().TraceID() {
		span.AddLink(trace.Link{SpanContext: to})
	}
}
