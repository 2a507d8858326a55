package visibility

import (
	"context"
	"weak"

	"github.com/sluice-mesh/sluice/services/gateway/internal/discovery"
	"github.com/sluice-mesh/sluice/services/internal/lru"
)

// maxViews limits how many views are cached. maxViewNames limits how many tool names all cached views contain together.
const (
	maxViews     = 10_000
	maxViewNames = 500_000
)

// views caches which tools in the gateway's own lists each caller may see. [AppendKey] creates the keys of the cache.
// It is safe for concurrent use.
type views struct{ *lru.Cache[string, *view] }

func newViews() views {
	return views{lru.New[string](maxViews, maxViewNames, func(v *view) int { return len(v.Visible) })}
}

// view contains the policy service's response about the tools of one list for one caller.
type view struct {
	*Tools

	// found identifies the list. The pointer is weak, so that a cached view does not keep its list in memory.
	found weak.Pointer[discovery.Result]
}

func newView(tools *Tools, found *discovery.Result) *view {
	return &view{Tools: tools, found: weak.Make(found)}
}

// find returns the cached view of a list if the view has the given policy revision. Otherwise it returns nil.
func (v views) find(key string, found *discovery.Result, revision string) *Tools {
	if cached, ok := v.Get(key); ok && cached.found == weak.Make(found) && cached.Revision == revision {
		return cached.Tools
	}
	return nil
}

// View returns the policy service's response about the tools in the gateway's own list of a server. revision is the
// policy revision of the caller's [Access]. If View fails, it returns [ErrPolicy] or [ErrBusy].
func (v *Visibility) View(ctx context.Context, c Caller, found *discovery.Result, revision string) (*Tools, error) {
	key := string(AppendKey(nil, c.Principal, c.Server))
	if cached := v.views.find(key, found, revision); cached != nil {
		return cached, nil
	}
	tools, err := v.Tools(ctx, c, found.List, found.Known)
	if err != nil {
		return nil, err
	}
	v.views.Put(key, newView(tools, found))
	return tools, nil
}
