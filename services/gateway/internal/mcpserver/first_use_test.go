package mcpserver_test

import (
	"context"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

// The gateway has failed to list a server. When the server then lists its tools to a session, the gateway lists the
// server before it answers the session, because a tool's first definition is accepted only from a complete list.
func TestFirstUse_ListsTheServerAgainWhenASessionGetsAnswers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTestGateway(t)
		there := switchAvailability(w)
		got := w.do("POST", "/mcp/files", initialize, nil)
		h := http.Header{"Mcp-Session-Id": got.header["Mcp-Session-Id"]}
		w.request = func(_ context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
			return answer(r, `{"tools":[{"name":"safe"}]}`), nil
		}
		time.AfterFunc(300*time.Millisecond, func() { there.Store(true) }) // after two failures
		w.do("POST", "/mcp/files", list, h)
		whole := 0
		for _, report := range w.catalog.Reports() {
			if report.Head.GetWhole() {
				whole++
			}
		}
		if whole != 1 {
			t.Errorf("the catalog got %d whole lists, want one", whole)
		}
	})
}
