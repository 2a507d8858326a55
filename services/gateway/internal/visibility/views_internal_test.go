package visibility

import (
	"runtime"
	"testing"
	"weak"

	"github.com/sluice-mesh/sluice/services/gateway/internal/discovery"
	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
)

// Case X1. A cached view does not reference its list. Otherwise old views would keep outdated lists in memory if a
// server changes its list often.
func TestViews_KeepNoListInMemory(t *testing.T) {
	t.Parallel()
	v, found := newViews(), &discovery.Result{List: new(jsonrpc.Answer)}
	list := weak.Make(found)
	v.Put("ana", newView(&Tools{Visible: map[string]bool{"a": true}, Revision: "r"}, found))
	if v.find("ana", found, "r") == nil || v.find("ana", new(discovery.Result), "r") != nil || v.find("ana", found, "s") != nil {
		t.Error("a view is found for another list or revision, or not for its own")
	}
	runtime.KeepAlive(found)
	runtime.GC()
	if list.Value() != nil {
		t.Error("the list stays in memory")
	}
	runtime.KeepAlive(&v)
}
