package allservers_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-mesh/sluice/services/gateway/internal/gatewaytest"
	"github.com/sluice-mesh/sluice/services/gateway/internal/toolreport/toolreporttest"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

// The gateway removes an element from an answer. It must not edit the names inside that element.
func TestRename_LeavesRemovedElementsOut(t *testing.T) {
	t.Parallel()
	forEachFamily(t, func(g *gatewaytest.Gateway) {
		g.Policy.Access.PromptsAlike, g.Policy.HidesName = false, func(name string) bool { return strings.Contains(name, "secret") }
		g.Files().Respond(`{"prompts":[{"name":"secret1"},{"name":"a"},{"name":"secret2","title":"T"}]}`)
		g.Servers["notes"].Respond(`{"prompts":[]}`)
	}, func(t *testing.T, c client) {
		checkResult(t, "prompts", c.list("prompts/list"), `"prompts":[{"name":"files__a"}]`)
	})
}

// Case A4. The policy service evaluates a call with the tool definition that the client has received, even if the
// server now lists a different definition.
func TestListedDigest_IsThatOfTheShownDefinition(t *testing.T) {
	t.Parallel()
	forEachFamily(t, func(g *gatewaytest.Gateway) { lists(g.Files(), tool("safe")) }, func(t *testing.T, c client) {
		c.list("tools/list")
		const other = `{"name":"safe","description":"other","inputSchema":{"type":"object"}}`
		lists(c.Files(), other)
		time.Sleep(10 * time.Minute)
		newer := client{Gateway: c.Gateway}
		if c.session != nil {
			newer = connect(c.Gateway) // lists the servers again
			newer.list("tools/list")
		}
		c.call("files__safe")
		newer.call("files__safe")
		decided := c.Policy.Decided()
		if got := string(decided[0].Call.GetDefinitionDigest()); got != string(toolreporttest.Digest(tool("safe"))) {
			t.Errorf("the call of a client that has seen the first definition was decided by %x", got)
		}
		if got := string(decided[1].Call.GetDefinitionDigest()); c.session != nil && got != string(toolreporttest.Digest(other)) {
			t.Errorf("the call of a client that has seen the second definition was decided by %x", got)
		}
	})
}

// Case X9. A client cannot call a hidden tool even if an earlier list contained the tool.
func TestListedDigest_HasNoHiddenTools(t *testing.T) {
	t.Parallel()
	forEachFamily(t, func(g *gatewaytest.Gateway) {
		g.Policy.Access.HidesNone = false
		lists(g.Files(), tool("safe")+","+tool("secret"))
	}, func(t *testing.T, c client) {
		c.list("tools/list")
		if got := c.call("files__secret"); got.Code() != "tool_unknown" || len(c.Files().Requests()) != 0 {
			t.Errorf("a hidden tool: %s", got.Text)
		}
		if got := c.call("files__safe"); got.Code() != "" {
			t.Errorf("a visible tool: %s", got.Text)
		}
	})
}

// The gateway stores the stream of an answer in the client's own session. It does not store the stream in the member
// session for the server, because the client does not know the member session.
func TestResumable_IsTheSessionOfTheClient(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := startGateway(t)
		c, release := connect(g), make(chan struct{})
		g.Files().Request = func(_ context.Context, r upstream.Request, events func([]byte)) (upstream.Answer, error) {
			events([]byte(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":1}}`))
			<-release
			return gatewaytest.Result(r, `{"content":[{"type":"resource_link","uri":"a:b","name":"n"}]}`), nil
		}
		stream := g.Stream(c.message("tools/call", "", `"name":"files__safe"`))
		stream.Next()
		last, _ := strings.CutPrefix(stream.Lines()[0], "id: ")
		stream.HangUp()
		close(release)
		synctest.Wait()
		back := g.Listen(gatewaytest.Message{}.In(c.session).With("Last-Event-Id", last), http.MethodGet)
		for _, want := range []string{`"progress":1`, `"uri":"mcp.files+a:b"`, ""} {
			if got := back.Next(); !strings.Contains(got, want) || want == "" && got != "" {
				t.Errorf("the client got %q, want %s", got, want)
			}
		}
		back.End()
	})
}

// A stream at the URL for all servers carries the messages of many servers, and the gateway itself acknowledges the
// subscription. If a server sends a message that belongs to a different subscription, the gateway does not forward it.
func TestSubscription_HasItsOwnMessagesOnly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGateway(t)
		g.Servers["files"] = gatewaytest.NewModernServer(t)
		g.Files().Open = func(r upstream.Request) (upstream.Answer, error) {
			if r.Method() != "server/discover" {
				return gatewaytest.ErrorAnswer(r, `{"code":-32601,"message":"no"}`), nil
			}
			return gatewaytest.Result(r, `{"supportedVersions":["2026-07-28"],"capabilities":{"resources":{"subscribe":true}},"resultType":"complete"}`), nil
		}
		g.Start()
		message := func(method string, id int) string {
			return fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/%s","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":%d},"uri":"a:b"}}`, method, id)
		}
		g.Files().Request = func(ctx context.Context, _ upstream.Request, events func([]byte)) (upstream.Answer, error) {
			for _, text := range []string{message("subscriptions/acknowledged", 7), message("resources/updated", 8), message("resources/updated", 7)} {
				events([]byte(text))
			}
			<-ctx.Done()
			return upstream.Answer{}, fmt.Errorf("%w: %w", upstream.ErrNoAnswer, ctx.Err())
		}
		stream := g.Stream(gatewaytest.Modern("subscriptions/listen", "", `"notifications":{"resourceSubscriptions":["mcp.files+a:b"]}`).To(""))
		synctest.Wait()
		want := []string{
			`{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":7},"notifications":{"resourceSubscriptions":["mcp.files+a:b"]}}}`,
			strings.Replace(message("resources/updated", 7), "a:b", "mcp.files+a:b", 1),
		}
		if diff := cmp.Diff(want, messages(stream)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		stream.HangUp()
		stream.End()
	})
}

// If an answer from a server contains too many names for the gateway to replace, only that answer is refused.
func TestRename_IsLimited(t *testing.T) {
	t.Parallel()
	forEachFamily(t, func(g *gatewaytest.Gateway) {
		g.Files().Respond(`{"content":[` + strings.TrimSuffix(strings.Repeat(`{"type":"resource_link","uri":"a"},`, 30_001), ",") + `]}`)
	}, func(t *testing.T, c client) {
		if got := c.call("files__safe"); got.Code() != "outcome_unknown" || !strings.Contains(got.Text, "use the URL of the server") {
			t.Errorf("%.300s", got.Text)
		}
	})
}
