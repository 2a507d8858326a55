package mcpserver_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/gatewaytest"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/journal"
)

const list = `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`

// Case X4. The number of messages for which no rule is needed is limited for each principal. The gateway counts these
// messages and records the counts every minute.
func TestExempt_MessagesAreLimitedAndRecorded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTestGateway(t)
		run := w.runPipeline()
		h := w.connect()
		w.countExempt(9_700, "ping")
		passed := 0
		for range 500 {
			switch got := w.do("POST", "/mcp/files", ping, h); {
			case got.status == 200 && got.code() == "":
				passed++
			case got.status != 200 || got.code() != "abuse_limited":
				t.Fatalf("%d %s", got.status, got.body)
			}
		}
		if passed != 299 { // initialize also counts
			t.Errorf("%d pings passed", passed)
		}
		if got := w.do("POST", "/mcp/files", toolCall, h); got.code() != "" {
			t.Errorf("a call: %s", got.body)
		}
		if got := w.do("POST", "/mcp/files", initialize, http.Header{"Authorization": {"Bearer " + benToken}}); got.status != 200 || got.code() != "" {
			t.Errorf("another caller: %d %s", got.status, got.body)
		}
		time.Sleep(time.Minute)
		if got := w.do("POST", "/mcp/files", ping, h); got.code() != "" {
			t.Errorf("a minute later: %s", got.body)
		}
		run()
		got := make(map[string]int64)
		for _, r := range w.Journal.Records(journal.KindPassed) {
			got[r.Subject+" "+r.Server+" "+r.Method] += r.Count
		}
		want := map[string]int64{"ana files initialize": 1, "ana files ping": 10_000, "ben files initialize": 1}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("on record (-want +got):\n%s", diff)
		}
	})
}

// Case X4. A message for which no rule is needed may have at most 64 KiB.
func TestExempt_MessageSizeIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTestGateway(t)
		h := w.connect()
		fill := strings.Repeat("x", 64<<10)
		for _, body := range []string{
			`{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":"` + fill + `"}}`,
			`{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"cursor":"` + fill + `"}}`,
			`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"x":"` + fill + `"}}`,
			`{"jsonrpc":"2.0","method":"notifications/initialized","params":{"x":"` + fill + `"}}`,
			`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1,"reason":"` + fill + `"}}`,
			`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":1,"message":"` + fill + `"}}`,
			`{"jsonrpc":"2.0","id":1,"result":{"x":"` + fill + `"}}`,
		} {
			if got := w.do("POST", "/mcp/files", body, h); got.status != 400 || got.code() != "body_too_large" {
				t.Errorf("%.60s: %d %s", body, got.status, got.body)
			}
		}
	})
}

// Case X4.
func TestExempt_NothingPassesWithoutPolicy(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTestGateway(t)
		h := w.connect()
		w.Policy.Access = nil
		for _, body := range []string{initialize, list} {
			if got := w.do("POST", "/mcp/files", body, h); got.status != 200 || got.code() != "policy_unavailable" {
				t.Errorf("%s: %d %s", body, got.status, got.body)
			}
		}
		w.do("POST", "/mcp/files", `{"jsonrpc":"2.0","method":"notifications/initialized"}`, h)
		if records := w.Journal.Records(journal.KindRefusal); len(w.files.Opened()) != 1 || len(w.files.Notified(0)) != 0 || len(records) != 3 {
			t.Errorf("%d sessions, %d notifications, %d records", len(w.files.Opened()), len(w.files.Notified(0)), len(records))
		}
	})
}

// Case X4. If a client sends a cursor that the server has not sent in this session, the request is refused.
func TestExempt_CursorMustBeTheServers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTestGateway(t)
		var asked []string
		w.files.Request = func(_ context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
			asked = append(asked, strings.SplitAfter(string(r.Body()), `"params":`)[1])
			return gatewaytest.Result(r, `{"tools":[],"nextCursor":"p\u00e4ge 2\u001b"}`), nil
		}
		h := w.connect()
		page := func(cursor string) string {
			return fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"cursor":%s,"_meta":{"progressToken":7}}}`, cursor)
		}
		for _, tt := range []struct{ cursor, code string }{
			{`"p\u00e4ge 2\u001b"`, "params_invalid"}, {`null`, ""}, {`"p\u00e4ge 2\u001b"`, ""}, {`"päge 2\u001B"`, ""}, {`"other"`, "params_invalid"}, {`""`, ""},
		} {
			if got := w.do("POST", "/mcp/files", page(tt.cursor), h); got.code() != tt.code {
				t.Errorf("%s: %s", tt.cursor, got.body)
			}
		}
		if got := w.do("POST", "/mcp/files", page(`7`), h); got.status != 400 || got.code() != "params_invalid" {
			t.Errorf("a number: %d %s", got.status, got.body)
		}
		other := w.connect()
		if got := w.do("POST", "/mcp/files", page(`"päge 2\u001b"`), other); got.code() != "params_invalid" {
			t.Errorf("another session's: %s", got.body)
		}
		want := []string{`{}}`, `{"cursor":"päge 2\u001b"}}`, `{"cursor":"päge 2\u001b"}}`, `{}}`}
		if diff := cmp.Diff(want, asked); diff != "" {
			t.Errorf("the server was asked (-want +got):\n%s", diff)
		}
	})
}

// Case X4.
func TestExempt_OnlySentRequestsAreCancelled(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTestGateway(t)
		h := w.connect()
		arrived, release := make(chan struct{}), make(chan struct{})
		w.files.Request = func(_ context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
			close(arrived)
			<-release
			return gatewaytest.Result(r, `{"content":[]}`), nil
		}
		cancel := func(id string) {
			w.do("POST", "/mcp/files", `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":`+id+`,"reason":"words"}}`, h)
		}
		var calling sync.WaitGroup
		calling.Go(func() { w.do("POST", "/mcp/files", toolCall, h) })
		<-arrived
		cancel(`"words"`)
		cancel(`1`)
		close(release)
		calling.Wait()
		cancel(`1`)
		w.Policy.Decision = &policyv1.Decision{Effect: policyv1.Effect_EFFECT_DENY}
		w.do("POST", "/mcp/files", toolCall, h)
		cancel(`1`)
		got := w.files.Notifications()
		if len(got) != 1 || string(got[0].Body()) != `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}` || string(got[0].Message.RequestID.Of(got[0].Body())) != "1" {
			t.Errorf("the server got %q", w.files.Notified(0))
		}
	})
}

// Case X4. If no rule can allow any request from a caller, the gateway answers initialize and tools/list with what the
// gateway itself has discovered about the server. The gateway discovers the server once for all callers. If a server is
// unavailable, the gateway tries the discovery again later.
func TestExempt_DiscoveryAnswersCallersWithoutAccess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTestGateway(t)
		w.files.Discovery = nil
		w.Policy.Access = &policyv1.CheckServerResponse{HidesNone: true}
		w.files.Request = func(_ context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
			if strings.Contains(string(r.Body()), "cursor") {
				return gatewaytest.Result(r, `{"tools":[{"name":"b","_meta":{"dev.sluice/x":1}},{"name":"secret-c"}]}`), nil
			}
			return gatewaytest.Result(r, `{"tools":[{"name":"a"}],"nextCursor":"2"}`), nil
		}
		works := w.files.Open
		w.files.Open = func(upstream.Request) (upstream.Answer, error) { return upstream.Answer{}, upstream.ErrNeverSent }
		for range 3 {
			if got := w.do("POST", "/mcp/files", initialize, nil); got.code() != "upstream_unavailable" {
				t.Errorf("a server that is away: %d %s", got.status, got.body)
			}
		}
		if len(w.files.Opened()) != 1 {
			t.Errorf("it was asked %d times", len(w.files.Opened()))
		}
		time.Sleep(6 * time.Second)
		w.files.Open = works
		got := w.do("POST", "/mcp/files", initialize, nil)
		if want := `{"jsonrpc":"2.0","id":0,"result":{"capabilities":{"tools":{"listChanged":true}},"protocolVersion":"2025-11-25","serverInfo":{"name":"sluice","title":"Sluice","version":""}}}`; got.body != want {
			t.Errorf("greeted with %s", got.body)
		}
		older := w.do("POST", "/mcp/files", strings.Replace(initialize, "2025-11-25", "2025-06-18", 1), http.Header{"Authorization": {"Bearer " + benToken}})
		if !strings.Contains(older.body, `"protocolVersion":"2025-06-18"`) {
			t.Errorf("an older client is greeted with %s", older.body)
		}
		h := http.Header{"Mcp-Session-Id": got.header["Mcp-Session-Id"]}
		if got := w.do("POST", "/mcp/files", list, h); got.body != `{"jsonrpc":"2.0","id":1,"result":{"tools":[{"name":"a"},{"name":"b","_meta":{}}]}}` {
			t.Errorf("listed is %s", got.body)
		}
		if len(w.files.Opened()) != 2 || w.files.Closed() != 1 || len(w.files.Notified(0)) != 1 {
			t.Errorf("%d sessions were opened, %d ended, %d put into use", len(w.files.Opened()), w.files.Closed(), len(w.files.Notified(0)))
		}
		w.do("DELETE", "/mcp/files", "", h)
		synctest.Wait()
		if w.files.Closed() != 1 {
			t.Error("a session that the server does not have was closed there")
		}
	})
}
