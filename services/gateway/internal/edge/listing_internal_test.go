package edge

import (
	"runtime"
	"testing"
	"weak"

	"github.com/sluice-mesh/sluice/services/gateway/internal/discovery"
	"github.com/sluice-mesh/sluice/services/gateway/internal/gate"
)

// X1: a cached view does not keep its list in memory. Otherwise the views of former callers would each hold a list of a
// server that changes its lists.
func TestX1ViewsKeepNoLists(t *testing.T) {
	t.Parallel()
	v := newViews()
	found := &discovery.Found{List: listOf(t, `[{"name":"a"}]`)}
	kept := weak.Make(found)
	v.Put("ana", newView(&shown{visible: map[string]bool{"a": true}, revision: "r"}, found))
	if v.of("ana", found, "r") == nil || v.of("ana", new(discovery.Found), "r") != nil || v.of("ana", found, "s") != nil {
		t.Error("a view is known for another list or revision, or not for its own")
	}
	runtime.KeepAlive(found)
	runtime.GC()
	if kept.Value() != nil {
		t.Error("the list is kept")
	}
	runtime.KeepAlive(&v)
}

func listOf(tb testing.TB, tools string) *gate.Answer {
	tb.Helper()
	a, err := gate.ReadAnswer([]byte(`{"jsonrpc":"2.0","id":1,"result":{"tools":`+tools+`}}`), gate.AnswerLimits())
	if err != nil {
		tb.Fatal(err)
	}
	return a
}
