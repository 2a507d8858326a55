package servers_test

import (
	"bytes"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/e2e/rawmcp"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
)

const (
	// tricklePrincipals is the number of principals that call at the same time. Each makes trickleCalls calls.
	tricklePrincipals = 6
	trickleCalls      = 4
	// otherSize is the size of the other server's responses, in bytes.
	otherSize = 5 << 20
)

// trickleResult returns a handler that immediately sends the given number of bytes of a result, and then sends single
// bytes until the connection is closed. If the parameter said is true, the response has a Content-Length.
func trickleResult(first int, said bool) rawmcp.Answer {
	return func(w http.ResponseWriter, r *http.Request, id string) {
		w.Header().Set("Content-Type", "application/json")
		if said {
			w.Header().Set("Content-Length", strconv.Itoa(15<<20))
		}
		writeAll(w, `{"jsonrpc":"2.0","id":`+id+`,"result":{"content":[{"type":"text","text":"`, bytes.Repeat([]byte("x"), first), "")
		for r.Context().Err() == nil {
			_, _ = w.Write([]byte("x"))
			_ = http.NewResponseController(w).Flush()
			time.Sleep(100 * time.Millisecond)
		}
	}
}

// Case X3. A server starts large responses and then sends them byte by byte. Each response uses memory only for the
// bytes that the server has sent, and the gateway eventually closes the server's connection. Meanwhile another server's
// large responses arrive.
func TestSlowResponses_LeaveMemoryToOtherServers(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]rawmcp.Answer{
		"a little": trickleResult(128<<10, false), "a little of what is said": trickleResult(128<<10, true), "nearly everything": trickleResult(14<<20, false),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bad, good := rawmcp.Start(t, rawmcp.Tools), rawmcp.Start(t, rawmcp.Tools)
			bad.SetAnswer("large", answer)
			text := bytes.Repeat([]byte("x"), otherSize)
			good.SetAnswer("large", func(w http.ResponseWriter, _ *http.Request, id string) {
				w.Header().Set("Content-Type", "application/json")
				writeAll(w, `{"jsonrpc":"2.0","id":`+id+`,"result":{"content":[{"type":"text","text":"`, text, `"}]}}`)
			})
			p := stack.Start(t, stack.WriteConfig(t, stack.Options{
				Servers: fmt.Sprintf("  bad: {http: {url: %q}, timeout: 40s}\n  good: {http: {url: %q}, timeout: 5s}", bad.URL, good.URL),
				Policy:  stack.OpenPolicy, Tokens: agentTokens(tricklePrincipals),
			}))
			told := make(chan stack.Response, tricklePrincipals*trickleCalls)
			for i := range tricklePrincipals {
				client := stack.Connect(t, p.MCP("bad"), agentToken(i))
				for range trickleCalls {
					go func() { told <- client.Call("large", "{}") }()
				}
			}
			eventually.Holds(t, "the slow server has received all calls", func() bool { return len(bad.Calls("large")) == cap(told) })
			victim := stack.Connect(t, p.MCP("good"), stack.OtherToken)
			begin, passed := time.Now(), 0
			for ; time.Since(begin) < 4*time.Second; passed++ {
				if resp := victim.Call("large", "{}"); len(resp.Body) < otherSize {
					t.Errorf("the other server's response of %d bytes, after %d responses: %.300s", otherSize, passed, resp.Body)
					break
				}
			}
			slow, full := 0, 0
			for range cap(told) {
				switch text := string((<-told).Body); {
				case strings.Contains(text, "too slowly"):
					slow++
				case strings.Contains(text, "no memory is left"), strings.Contains(text, "did not answer within"):
					full++ // this server's other calls have used its quota
				default:
					t.Errorf("the response to a call of the slow server is %.300s", text)
				}
			}
			if slow == 0 {
				t.Error("no call of the slow server was cut off")
			}
			t.Logf("%d answers of %d bytes passed during the slow ones; %d slow ones were cut off, %d were refused for lack of memory, within %v",
				passed, otherSize, slow, full, time.Since(begin).Round(time.Second))
		})
	}
}

// agentTokens returns configuration lines for n agent tokens.
func agentTokens(n int) string {
	var lines strings.Builder
	for i := range n {
		fmt.Fprintf(&lines, "    - {name: agent-%d, token: %q, agent: a, role: agent}\n", i, agentToken(i))
	}
	return lines.String()
}

func agentToken(i int) string { return fmt.Sprintf("test-token-of-agent-%d-N1m2B3v4C5x6Z7", i) }
