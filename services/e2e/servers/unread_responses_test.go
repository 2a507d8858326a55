package servers_test

import (
	"bytes"
	"fmt"
	"io"
	"net"
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
	// unreadCalls is the number of concurrent calls. Each has a response of unreadSize bytes.
	unreadCalls = 100
	unreadSize  = 15 << 20
	// maxResident is the maximum resident memory of the mesh, in MiB. A principal's responses may use 64 MiB, and the
	// garbage collector needs up to as much again. The rest is for the mesh itself.
	maxResident = 350
)

// Case X3. A hundred calls have responses of 15 MiB that the client does not read. They use only the principal's memory
// quota and do not affect other callers.
func TestUnreadResponses_UseOnlyTheQuotaOfThePrincipal(t *testing.T) {
	t.Parallel()
	text := bytes.Repeat([]byte("x"), unreadSize)
	for name, answer := range map[string]rawmcp.Answer{
		"of a length that is said": func(w http.ResponseWriter, _ *http.Request, id string) {
			head, tail := `{"jsonrpc":"2.0","id":`+id+`,"result":{"content":[{"type":"text","text":"`, `"}]}}`
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Content-Length", strconv.Itoa(len(head)+len(text)+len(tail)))
			writeAll(w, head, text, tail)
		},
		"in chunks": func(w http.ResponseWriter, _ *http.Request, id string) {
			w.Header().Set("Content-Type", "application/json")
			writeAll(w, `{"jsonrpc":"2.0","id":`+id+`,"result":{"content":[{"type":"text","text":"`, text, `"}]}}`)
		},
		"in an event": func(w http.ResponseWriter, _ *http.Request, id string) {
			w.Header().Set("Content-Type", "text/event-stream")
			writeAll(w, `data: {"jsonrpc":"2.0","id":`+id+`,"result":{"content":[{"type":"text","text":"`, text, `"}],"_meta":{"dev.sluice/x":1}}}`+"\n\n")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			up := rawmcp.Start(t, rawmcp.Tools)
			up.SetAnswer("large", answer)
			p := stack.Start(t, stack.WriteConfig(t, stack.Options{
				Servers: fmt.Sprintf("  raw: {http: {url: %q}, timeout: 20s}", up.URL), Policy: stack.OpenPolicy,
			}))
			flood := stack.Connect(t, p.MCP("raw"), stack.AgentToken)
			victim := stack.Connect(t, p.MCP("raw"), stack.OtherToken)
			before := p.PeakMemory(t)
			for range unreadCalls {
				callWithoutReading(t, p.URL, flood.Session(), stack.AgentToken)
			}
			eventually.Holds(t, "the flood has begun", func() bool { return len(up.Calls("large")) >= 4 })
			over := time.After(5 * time.Second)
			calls, done := 0, false
			for ; !done; calls++ {
				select {
				case <-over:
					done = true
				default:
				}
				if resp := victim.Call("safe", "{}"); resp.IsError(t) {
					t.Fatalf("another caller was refused: %s", resp.Body)
				}
			}
			if resp := victim.Call("large", "{}"); len(resp.Body) < unreadSize {
				t.Errorf("another caller's large response is %.300s", resp.Body)
			}
			most := p.PeakMemory(t)
			t.Logf("at most %d MiB were resident, %d before; another caller made %d calls", most, before, calls)
			if most > maxResident {
				t.Errorf("%d MiB were resident, want at most %d", most, maxResident)
			}
		})
	}
}

func writeAll(w io.Writer, head string, text []byte, tail string) {
	for _, part := range [][]byte{[]byte(head), text, []byte(tail)} {
		if _, err := w.Write(part); err != nil {
			return // the gateway closed the connection
		}
	}
}

// callWithoutReading makes a call on a new connection and does not read the response.
func callWithoutReading(t *testing.T, url, session, token string) {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.(*net.TCPConn).SetReadBuffer(4 << 10); err != nil {
		t.Fatal(err)
	}
	body := stack.CallRequest(`{"name":"large"}`)
	if _, err := fmt.Fprintf(conn, "POST /mcp/raw HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nAccept: application/json, text/event-stream\r\n"+
		"Authorization: Bearer %s\r\nMcp-Session-Id: %s\r\nContent-Length: %d\r\n\r\n%s", token, session, len(body), body); err != nil {
		t.Fatal(err)
	}
}
