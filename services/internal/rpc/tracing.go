package rpc

import (
	"context"

	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/stats"
)

// ServerTrace returns a stats handler that creates a server's spans. It skips calls whose parent is not sampled. For
// such a call, it only looks up one header. It also skips calls from clients that are not services of the mesh, so that
// an untrusted client can't start a trace.
func ServerTrace(tp trace.TracerProvider, prop propagation.TextMapPropagator) stats.Handler {
	return &sampledOnly{inner: otelgrpc.NewServerHandler(options(tp, prop)...), prop: prop, server: true}
}

// ClientTrace returns a stats handler that creates a client's spans. For a call whose parent is not sampled, it only
// sends the trace context.
func ClientTrace(tp trace.TracerProvider, prop propagation.TextMapPropagator) stats.Handler {
	return &sampledOnly{inner: otelgrpc.NewClientHandler(options(tp, prop)...), prop: prop}
}

func options(tp trace.TracerProvider, prop propagation.TextMapPropagator) []otelgrpc.Option {
	return []otelgrpc.Option{
		otelgrpc.WithTracerProvider(tp),
		otelgrpc.WithPropagators(prop),
		otelgrpc.WithMeterProvider(metricnoop.NewMeterProvider()),
	}
}

// sampledOnly forwards calls of sampled traces to inner and skips other calls.
type sampledOnly struct {
	inner  stats.Handler
	prop   propagation.TextMapPropagator
	server bool
}

type skipSpanKey struct{}

// TagRPC implements [stats.Handler].
func (h *sampledOnly) TagRPC(ctx context.Context, info *stats.RPCTagInfo) context.Context {
	parent := trace.SpanContextFromContext(ctx)
	if h.server {
		if _, isRole, err := peerOf(ctx); err != nil || !isRole {
			return context.WithValue(ctx, skipSpanKey{}, true)
		}
	}
	if h.server && !parent.IsValid() {
		ctx = h.prop.Extract(ctx, incomingCarrier{ctx})
		parent = trace.SpanContextFromContext(ctx)
	}
	if parent.IsSampled() {
		return h.inner.TagRPC(ctx, info)
	}
	if !h.server && parent.IsValid() {
		md, ok := metadata.FromOutgoingContext(ctx) // FromOutgoingContext returns a copy
		if !ok {
			md = make(metadata.MD, 1)
		}
		h.prop.Inject(ctx, outgoingCarrier(md))
		ctx = metadata.NewOutgoingContext(ctx, md)
	}
	return context.WithValue(ctx, skipSpanKey{}, true)
}

// HandleRPC implements [stats.Handler].
func (h *sampledOnly) HandleRPC(ctx context.Context, s stats.RPCStats) {
	if ctx.Value(skipSpanKey{}) == nil {
		h.inner.HandleRPC(ctx, s)
	}
}

// TagConn implements [stats.Handler].
func (h *sampledOnly) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// HandleConn implements [stats.Handler].
func (h *sampledOnly) HandleConn(context.Context, stats.ConnStats) {}

// incomingCarrier reads the trace context from a call's metadata without copying the metadata.
type incomingCarrier struct{ ctx context.Context } //nolint:containedctx // used only while the metadata is read

// Get implements [propagation.TextMapCarrier].
func (r incomingCarrier) Get(key string) string {
	if v := metadata.ValueFromIncomingContext(r.ctx, key); len(v) == 1 {
		return v[0]
	}
	return ""
}

// Set implements [propagation.TextMapCarrier]. It does nothing, because the metadata is only read.
func (incomingCarrier) Set(string, string) {}

// Keys implements [propagation.TextMapCarrier]. It is not used.
func (incomingCarrier) Keys() []string { return nil }

// outgoingCarrier reads and writes the trace context in gRPC metadata.
type outgoingCarrier metadata.MD

// Get implements [propagation.TextMapCarrier].
func (c outgoingCarrier) Get(key string) string {
	if v := metadata.MD(c).Get(key); len(v) == 1 {
		return v[0]
	}
	return ""
}

// Set implements [propagation.TextMapCarrier].
func (c outgoingCarrier) Set(key, value string) { metadata.MD(c).Set(key, value) }

// Keys implements [propagation.TextMapCarrier].
func (c outgoingCarrier) Keys() []string {
	keys := make([]string, 0, len(c))
	for k := range c {
		keys = append(keys, k)
	}
	return keys
}
