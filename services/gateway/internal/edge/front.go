package edge

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/sluice-mesh/sluice/services/gateway/internal/broadcast"
	"github.com/sluice-mesh/sluice/services/gateway/internal/dispatch"
	"github.com/sluice-mesh/sluice/services/gateway/internal/httpserver"
	"github.com/sluice-mesh/sluice/services/gateway/internal/inflight"
	"github.com/sluice-mesh/sluice/services/gateway/internal/intake"
	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/pipeline"
	"github.com/sluice-mesh/sluice/services/gateway/internal/servers"
	"github.com/sluice-mesh/sluice/services/gateway/internal/session"
	"github.com/sluice-mesh/sluice/services/gateway/internal/visibility"
	"github.com/sluice-mesh/sluice/services/internal/principal"
)

// frontDeps are the dependencies of a [front]. Every field is required.
type frontDeps struct {
	Dispatcher *dispatch.Dispatcher
	Pipeline   *pipeline.Pipeline
	Sessions   *session.Store
	Visibility *visibility.Visibility
	// Servers are the configured servers by name.
	Servers map[string]*servers.Server
	// InFlight counts the requests under way.
	InFlight *inflight.Load
	// Changes notifies of servers whose list of tools has changed.
	Changes *broadcast.News
	// Limits are the limits for parsing messages.
	Limits jsonrpc.Limits
	// TrustParent reports whether a client's trace is continued. Otherwise spans only link to it.
	TrustParent bool
	// Sessionful and Stateless return the handler of a message of the revisions with sessions, and of 2026-07-28.
	Sessionful, Stateless func(*exchange) handler

	Tracer     trace.Tracer
	Propagator propagation.TextMapPropagator
	Log        *slog.Logger
}

// front reads the messages of authenticated callers, and hands each to the protocol of its revision. It is safe for
// concurrent use.
type front struct {
	frontDeps

	pieces intake.Pieces
	visits visits
}

// keyOf returns the key of a caller's session with a server.
func keyOf(c httpserver.Caller, server string) session.Key {
	return session.Key{Key: principal.Of(c.Principal), Server: server}
}

// panicked logs a panic that was recovered, so that it ends only the message that caused it.
func (f *front) panicked(ctx context.Context, what any) {
	f.Log.ErrorContext(ctx, "request panicked", "panic", fmt.Sprint(what), "stack", string(debug.Stack()))
}

// visits counts the running errands and calls of tasks. The zero value has none. It is safe for concurrent use.
type visits struct {
	mu     sync.Mutex
	closed bool
	open   sync.WaitGroup
}

// enter counts an errand. It returns false if the gateway is shutting down.
func (v *visits) enter() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.closed {
		return false
	}
	v.open.Add(1)
	return true
}

func (v *visits) leave() { v.open.Done() }
