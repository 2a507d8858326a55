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
	// changedAfter is the maximum age of the gateway's own list when a session receives a tool definition that differs
	// from the accepted one. If the list is older, the gateway reads it again. changedAfter also limits how often the
	// gateway lists the tools of a server that changes its definitions all the time.
	changedAfter = 2 * time.Second
)

// Tools looks up the tools that the caller can see on the server of an exchange. It searches the session's list and the
// gateway's own list. It implements [attempt.Tools].
type Tools struct {
	*Exchange

	access visibility.Access
	// HidesTools is true if the policy hides some of the server's tools from the caller.
	HidesTools bool
}

// tools returns the [Tools] of the exchange. It returns an error if the policy service is unavailable.
func (x *Exchange) tools(ctx context.Context) (Tools, error) {
	if x.Message.Method != mcp.MethodToolsCall {
		return Tools{Exchange: x}, nil
	}
	access, err := x.Access(ctx)
	return Tools{Exchange: x, access: access, HidesTools: err == nil && !access.HidesNone}, err
}

// Listed reports whether the caller can see the called tool. It searches the session's list, and then the part of the
// gateway's own list that the caller may see. It takes the same steps for hidden tools and for missing tools. Its spans
// are not part of the call's trace, because the result is cached for all calls.
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
