// Package protocol reads messages from authenticated callers. It passes each message to the package for its MCP
// revision, v2025 or v2026. These packages use package allservers for messages to the URL for all servers, and package
// dispatch for requests to one server.
package protocol

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/sluice-mesh/sluice/services/gateway/internal/bodyreader"
	"github.com/sluice-mesh/sluice/services/gateway/internal/broadcast"
	"github.com/sluice-mesh/sluice/services/gateway/internal/dispatch"
	"github.com/sluice-mesh/sluice/services/gateway/internal/httpserver"
	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/limits"
	"github.com/sluice-mesh/sluice/services/gateway/internal/pipeline"
	"github.com/sluice-mesh/sluice/services/gateway/internal/servers"
	"github.com/sluice-mesh/sluice/services/gateway/internal/session"
	"github.com/sluice-mesh/sluice/services/gateway/internal/visibility"
	"github.com/sluice-mesh/sluice/services/internal/principal"
)

// Deps are the dependencies of a [Router]. Every field is required.
type Deps struct {
	Dispatcher *dispatch.Dispatcher
	Pipeline   *pipeline.Pipeline
	Sessions   *session.Store
	Visibility *visibility.Visibility
	// Servers are the configured servers by name.
	Servers map[string]*servers.Server
	// Hosts contains the servers that represent clients' own tools, by name. Only requests from clients' hooks can use
	// these servers.
	Hosts map[string]*servers.Server
	// InFlight counts the requests in flight.
	InFlight *limits.Requests
	// Changes signals that the tool list of a server has changed.
	Changes *broadcast.Broadcaster
	// Limits are the limits for parsing messages.
	Limits jsonrpc.Limits
	// TrustParent makes the gateway continue the trace of a client. Otherwise, the gateway starts a new trace that links
	// to the client's trace.
	TrustParent bool
	// Sessionful returns the handler for a message of an MCP revision that uses sessions. Stateless returns the handler
	// for a message of revision 2026-07-28.
	Sessionful, Stateless func(*Request) Handler

	Tracer     trace.Tracer
	Propagator propagation.TextMapPropagator
	Log        *slog.Logger
}

// Router reads the messages of authenticated callers, and passes each message to the [Protocol] for its MCP revision.
// It is safe for concurrent use. Deps must be set before the first message.
type Router struct {
	Deps

	pieces bodyreader.Pieces
	// Background counts the requests in flight that come from mesh services, from tasks or from clients' hooks.
	Background Background
}

// SessionKey returns the key of a caller's session with a server.
func SessionKey(c httpserver.Caller, server string) session.Key {
	return session.Key{Key: principal.Of(c.Principal), Person: principal.ConnectionsOf(c.Principal), Server: server}
}

// LogPanic logs a panic that was recovered. The panic ends only the request that has caused it, not the process.
func (f *Router) LogPanic(ctx context.Context, what any) {
	f.Log.ErrorContext(ctx, "request panicked", "panic", fmt.Sprint(what), "stack", string(debug.Stack()))
}

// Background counts the requests in flight that come from mesh services, from tasks or from clients' hooks. The zero
// value is ready to use. It is safe for concurrent use.
type Background struct {
	mu      sync.Mutex
	closed  bool
	running sync.WaitGroup
}

// Begin counts a request until [Background.Done] is called. It returns false if the gateway is shutting down, because
// Drain was called.
func (b *Background) Begin() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return false
	}
	b.running.Add(1)
	return true
}

// Done records that a request has ended. It must be called once after each call of [Background.Begin] that returns
// true.
func (b *Background) Done() { b.running.Done() }

// Drain makes [Background.Begin] return false, and then waits until the counted requests have ended or ctx is done.
func (b *Background) Drain(ctx context.Context) {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	ended := make(chan struct{})
	go func() {
		b.running.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-ctx.Done():
	}
}
