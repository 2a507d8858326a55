package edge

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/sluice-mesh/sluice/services/gateway/internal/meters"
	"github.com/sluice-mesh/sluice/services/gateway/internal/spans"
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
	return x.deps.Tracer.Start(ctx, spans.Name(x.msg), opts...) //nolint:spancheck // post ends it
}

// measure measures how long the client's message took. An answer has no method and
// is none of the client's own messages.
func (x *exchange) measure(ctx context.Context) {
	if x.msg.Method != "" {
		o, took := meters.Operation{Method: x.msg.Method, ErrorType: x.failure, Transport: x.place().Transport}, time.Since(x.received)
		x.deps.Meters.Served(ctx, o, took, x.held)
	}
}

// place is where the message comes from, as far as it is known.
func (x *exchange) place() spans.Place {
	at := spans.Place{Server: x.server, Transport: "tcp"}
	if x.sess != nil {
		at.Version, at.Session = x.sess.Version, x.sess.Digest
	}
	return at
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
