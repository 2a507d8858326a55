package mcpserver_test

import (
	"bufio"
	"context"
	"maps"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/gatewaytest"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

func (w *testGateway) resumeStream(h http.Header, last string) httpResponse {
	w.t.Helper()
	back := http.Header{"Accept": {"text/event-stream"}, "Last-Event-Id": {last}}
	maps.Copy(back, h)
	return w.do("GET", "/mcp/files", "", back)
}

// A client that has lost the stream of an answer can resume the stream, but only in its own session. It then receives
// the remaining messages and the answer.
func TestResume_LostAnswerIsContinued(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTestGateway(t)
		h := w.connect()
		w.files.Request = func(_ context.Context, r upstream.Request, events func([]byte)) (upstream.Answer, error) {
			for range 3 {
				events([]byte(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":1}}`))
				time.Sleep(10 * time.Second)
			}
			return gatewaytest.Result(r, `{"late":true}`), nil
		}
		ctx, cancel := context.WithCancel(t.Context())
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://localhost/mcp/files", strings.NewReader(toolCall))
		if err != nil {
			t.Fatal(err)
		}
		req.Header = http.Header{"Authorization": {"Bearer " + anaToken}, "Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"}, "Mcp-Session-Id": h["Mcp-Session-Id"]}
		resp, err := w.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(resp.Body)
		for lines.Scan() && lines.Text() != "id: sluice-1-1" {
		}
		cancel()
		_ = resp.Body.Close()
		time.Sleep(time.Second)
		other := w.connect()
		if got := w.resumeStream(other, "sluice-1-1"); got.status != http.StatusBadRequest || strings.Contains(got.body, "progress") {
			t.Errorf("another session got %d %s", got.status, got.body)
		}
		got := w.resumeStream(h, "sluice-1-1")
		if got.status != http.StatusOK || strings.Contains(got.body, "id: sluice-1-1\n") || strings.Count(got.body, "notifications/progress") != 2 ||
			!strings.HasSuffix(got.body, `data: {"jsonrpc":"2.0","id":1,"result":{"late":true}}`+"\n\n") {
			t.Errorf("it got %d %s", got.status, got.body)
		}
		if got := w.resumeStream(h, "sluice-1-9"); got.status != http.StatusBadRequest {
			t.Errorf("an event that was not: %d %s", got.status, got.body)
		}
	})
}

// A server closes its stream before it has sent the answer, and expects the client to reconnect. The gateway cannot
// resume the server's stream. The client reconnects to the gateway and receives the messages and the answer that the
// gateway has stored.
func TestResume_ClientReconnectsWhenTheServerDetaches(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTestGateway(t)
		h := w.connect()
		w.files.Request = func(context.Context, upstream.Request, func([]byte)) (upstream.Answer, error) {
			return upstream.Answer{}, upstream.ErrStreamEnded
		}
		first := w.do("POST", "/mcp/files", toolCall, h)
		if first.status != http.StatusOK || first.body != "id: sluice-1-0\nretry: 1000\ndata: \n\n" {
			t.Errorf("its stream is %d %q", first.status, first.body)
		}
		if got := w.resumeStream(h, "sluice-1-0"); !strings.Contains(got.body, `"code":"outcome_unknown"`) {
			t.Errorf("it came back to %d %s", got.status, got.body)
		}
	})
}

// The gateway itself answers a request at the URL for all servers, and the client loses the answer's stream. The client
// can resume the stream as long as it may use at least one of the servers.
func TestResume_OwnAnswerAtTheURLOfAllServersIsContinued(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newAllServers(t)
		h := w.connect()
		ask := maps.Clone(h)
		ask["Accept"] = []string{"text/event-stream"}
		first := w.do("POST", "/mcp", `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, ask)
		if !strings.HasPrefix(first.body, "id: sluice-1-0\n") || !strings.Contains(first.body, "files__safe") {
			t.Fatalf("%d %s", first.status, first.body)
		}
		back := maps.Clone(h)
		back["Accept"], back["Last-Event-Id"] = []string{"text/event-stream"}, []string{"sluice-1-0"}
		if got := w.do("GET", "/mcp", "", back); !strings.Contains(got.body, "files__safe") {
			t.Errorf("the stream continues with %d %q", got.status, got.body)
		}
		w.setAccess(new(policyv1.CheckServerResponse))
		if got := w.do("GET", "/mcp", "", back); strings.Contains(got.body, "files") {
			t.Errorf("a caller that may use no server any more got %d %q", got.status, got.body)
		}
	})
}
