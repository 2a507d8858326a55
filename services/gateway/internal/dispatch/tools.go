package dispatch

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/sluice-mesh/sluice/services/gateway/internal/attempt"
	"github.com/sluice-mesh/sluice/services/gateway/internal/discovery"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/servers"
	"github.com/sluice-mesh/sluice/services/gateway/internal/toolreport"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/gateway/internal/visibility"
)

const (
	// changedAfter is how old the gateway's own list may be when the server lists a definition to a session that is not
	// the accepted one. A server whose definitions differ in each list makes the gateway list it no more often than
	// this.
	changedAfter = 2 * time.Second
)

// Tools is what the server of an exchange lists to its caller.
type Tools struct {
	*Exchange

	access visibility.Access
	// HidesTools reports whether a tool is hidden from the caller.
	HidesTools bool
}

// tools returns what the server lists to the caller. It returns an error if policy cannot be asked.
func (x *Exchange) tools(ctx context.Context) (Tools, error) {
	if x.Message.Method != mcp.MethodToolsCall {
		return Tools{Exchange: x}, nil
	}
	access, err := x.Access(ctx)
	return Tools{Exchange: x, access: access, HidesTools: err == nil && !access.HidesNone}, err
}

// Listed reports whether the caller's list has the called tool: the list of this session, or what the caller sees of
// the gateway's own. Listed takes the same steps whether a tool is hidden or does not exist. Its spans are not part of
// the call's trace, because the result is cached for all calls.
func (t Tools) Listed(ctx context.Context) (attempt.Listing, error) {
	if t.Addressing.ListedDigest(t.Message.Name) != nil {
		return attempt.Listing{Listed: true}, nil
	}
	ctx = trace.ContextWithSpanContext(ctx, trace.SpanContext{})
	out := attempt.Listing{Revision: t.access.Revision}
	for _, age := range []time.Duration{discovery.Fresh, servers.RenewAfter} {
		found, err := t.Discovery.Get(ctx, age)
		if errors.Is(err, toolreport.ErrNotReported) {
			return out, err
		}
		if err != nil {
			t.ServerFailed(ctx, upstream.Answer{}, err)
			return out, attempt.ErrUnlisted
		}
		seen, err := t.Deps.Visibility.View(ctx, t.Viewer(), found, t.access.Revision)
		if err != nil {
			return out, err
		}
		if out.Listed = seen.Visible[t.Message.Name]; out.Listed {
			break
		}
	}
	return out, nil
}
