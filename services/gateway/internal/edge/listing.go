package edge

import (
	"context"
	"errors"
	"time"
	"weak"

	"go.opentelemetry.io/otel/trace"

	"github.com/sluice-mesh/sluice/services/gateway/internal/attempt"
	"github.com/sluice-mesh/sluice/services/gateway/internal/catalogue"
	"github.com/sluice-mesh/sluice/services/gateway/internal/discovery"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/reach"
	"github.com/sluice-mesh/sluice/services/gateway/internal/recent"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

// errUnjudged means that policy could not filter a list.
var errUnjudged = errors.New("policy did not judge the list")

const (
	// newsAfter is how old the gateway's own list may be if it lacks a tool, because the server may have added the tool
	// since.
	newsAfter = 30 * time.Second
	// changedAfter is how old the gateway's own list may be when the server lists a definition to a session that is not
	// the accepted one. A server whose definitions differ in each list makes the gateway list it no more often than this.
	changedAfter = 2 * time.Second
	// maxViews is how many callers' views of lists are cached, and maxSeen how many tool names they may have together.
	maxViews = 10_000
	maxSeen  = 500_000
)

// views caches what callers see of the gateway's own lists, by [reach.AppendKey]. It is safe for concurrent use.
type views struct{ *recent.Recent[string, *view] }

func newViews() views {
	return views{recent.New[string](maxViews, maxSeen, func(v *view) int { return len(v.visible) })}
}

// view is what one caller sees of one list.
type view struct {
	*shown

	// found is the list. The pointer is weak because the view does not need the list, only whether it is the same one.
	found weak.Pointer[discovery.Found]
}

func newView(shown *shown, found *discovery.Found) *view {
	return &view{shown: shown, found: weak.Make(found)}
}

// of returns the cached view of a list as a policy revision decided it; nil if there is none.
func (v views) of(key string, found *discovery.Found, revision string) *view {
	if known, ok := v.Get(key); ok && known.found == weak.Make(found) && known.revision == revision {
		return known
	}
	return nil
}

// tools is what the server of an exchange lists to its caller.
type tools struct {
	*exchange

	said reach.Standing
	// hides reports whether a tool is hidden from the caller.
	hides bool
}

// tools returns what the server lists to the caller. It returns an error if policy cannot be asked.
func (x *exchange) tools(ctx context.Context) (tools, error) {
	if x.msg.Method != mcp.MethodToolsCall {
		return tools{exchange: x}, nil
	}
	said, err := x.standing(ctx)
	return tools{exchange: x, said: said, hides: err == nil && !said.HidesNone}, err
}

// Listed reports whether the caller's list has the called tool: the list of this session, or what the caller sees of
// the gateway's own. It takes the same steps if a tool is hidden as if it does not exist. Its spans are not part of the
// call's trace, because the result serves all calls.
func (t tools) Listed(ctx context.Context) (attempt.Listing, error) {
	if t.addressing.shown(t.msg.Name) != nil {
		return attempt.Listing{Listed: true}, nil
	}
	ctx = trace.ContextWithSpanContext(ctx, trace.SpanContext{})
	out := attempt.Listing{Revision: t.said.Revision}
	for _, age := range []time.Duration{discovery.Fresh, newsAfter} {
		found, err := t.ownList.Found(ctx, age)
		if errors.Is(err, catalogue.ErrAway) {
			return out, err
		}
		if err != nil {
			t.silent(ctx, upstream.Answer{}, err)
			return out, attempt.ErrUnlisted
		}
		seen, err := t.view(ctx, found, t.said)
		if err != nil {
			return out, err
		}
		if out.Listed = seen.visible[t.msg.Name]; out.Listed {
			break
		}
	}
	return out, nil
}

// view returns what the caller sees of the gateway's own list.
func (x *exchange) view(ctx context.Context, found *discovery.Found, said reach.Standing) (*view, error) {
	key := string(reach.AppendKey(nil, x.Principal, x.server))
	if known := x.views.of(key, found, said.Revision); known != nil {
		return known, nil
	}
	shown, refused := x.filter(ctx, found.List, found.Known)
	if refused != nil {
		return nil, errUnjudged
	}
	fresh := newView(shown, found)
	x.views.Put(key, fresh)
	return fresh, nil
}
