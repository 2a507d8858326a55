package edge

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// startSpan starts the server's span of a message. A client's trace is a
// stranger's: it becomes a link, unless the configuration trusts it.
func (x *exchange) startSpan(ctx context.Context) (context.Context, trace.Span) {
	opts := []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindServer)}
	if remote := x.remoteSpan(); remote.IsValid() {
		if x.cfg.TrustParent {
			ctx = trace.ContextWithRemoteSpanContext(ctx, remote)
		} else {
			opts = append(opts, trace.WithLinks(trace.Link{SpanContext: remote}))
		}
	}
	ctx, span := x.deps.Tracer.Start(ctx, x.spanName(), opts...)
	if span.IsRecording() {
		span.SetAttributes(
			attribute.String("mcp.method.name", x.msg.Method),
			attribute.String("jsonrpc.request.id", string(x.id())),
			attribute.String("network.transport", "tcp"),
			attribute.String("sluice.server", x.server),
		)
		if x.msg.Name != "" {
			span.SetAttributes(
				attribute.String("gen_ai.operation.name", "execute_tool"),
				attribute.String("gen_ai.tool.name", clip(x.msg.Name)),
			)
		}
	}
	return ctx, span
}

// remoteSpan reads the client's trace context: `_meta` first, else the header.
func (x *exchange) remoteSpan() trace.SpanContext {
	carrier := propagation.MapCarrier{"traceparent": x.msg.Meta.TraceParent, "tracestate": x.msg.Meta.TraceState}
	if x.msg.Meta.TraceParent == "" {
		parent, _ := single(x.r.Header, "Traceparent")
		if parent == "" {
			return trace.SpanContext{}
		}
		carrier["traceparent"] = parent
	}
	return trace.SpanContextFromContext(x.deps.Propagator.Extract(context.Background(), carrier))
}

func (x *exchange) spanName() string {
	switch {
	case x.msg.Method == "":
		return "response"
	case x.msg.Name == "":
		return x.msg.Method
	default:
		return x.msg.Method + " " + clip(x.msg.Name)
	}
}
