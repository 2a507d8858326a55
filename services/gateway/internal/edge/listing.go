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

// errUnjudged means that policy did not say what a caller may see.
var errUnjudged = errors.New("policy did not judge the list")

const (
	// newsAfter is how old the gateway's own list may be where a tool is not on it: a
	// server may have got it since.
	newsAfter = 30 * time.Second
	// changedAfter is how old the gateway's own list may be when a session is shown a definition that is not the
	// accepted one: a server that has another one for each list makes the gateway list it no more often than this.
	changedAfter = 2 * time.Second
	// maxViews is how many callers' views of lists are kept, and maxSeen how many names
	// they may have together.
	maxViews = 10_000
	maxSeen  = 500_000
)

// views are what callers see of the gateway's own lists, by [reach.AppendKey]. It is safe
// for concurrent use.
type views struct{ *recent.Recent[string, *view] }

func newViews() views {
	return views{recent.New[string](maxViews, maxSeen, func(v *view) int { return len(v.visible) })}
}

// view is what one caller sees of one list.
type view struct {
	*shown

	// found is the list, which is kept for nobody: only whether it is the same counts.
	found weak.Pointer[discovery.Found]
}

func newView(shown *shown, found *discovery.Found) *view {
	return &view{shown: shown, found: weak.Make(found)}
}

// of returns a caller's view of a list as a revision judges it; nil where it is not
// known.
func (v views) of(key string, found *discovery.Found, revision string) *view {
	if known, ok := v.Get(key); ok && known.found == weak.Make(found) && known.revision == revision {
		return known
	}
	return nil
}

// tools are what the server of an exchange lists for its caller.
type tools struct {
	*exchange

	said reach.Standing
	// hides says that something is hidden from the caller.
	hides bool
}

// tools returns what the server lists for the caller. An error means that policy can't
// be asked what that is.
func (x *exchange) tools(ctx context.Context) (tools, error) {
	if x.msg.Method != mcp.MethodToolsCall {
		return tools{exchange: x}, nil
	}
	said, err := x.standing(ctx)
	return tools{exchange: x, said: said, hides: err == nil && !said.HidesNone}, err
}

// Listed reports whether the caller's list has the called tool: that of this session, or
// what the caller sees of the gateway's own. It takes the same steps whether a tool is
// hidden or not there, in a trace of its own: what it finds is for all calls.
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

// view is what the caller sees of the gateway's own list.
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
