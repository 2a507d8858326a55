package mcpserver_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/gatewaytest"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/journal"
)

func endsWithin(t *testing.T, c net.Conn, limit time.Duration) {
	t.Helper()
	begin := time.Now()
	if err := c.SetReadDeadline(begin.Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 4<<10)
	for {
		if _, err := c.Read(buf); err != nil {
			break
		}
	}
	if took := time.Since(begin); took > limit {
		t.Errorf("the connection was held for %v, want at most %v", took, limit)
	}
}

// Case N2. If the bytes of a request arrive too slowly, the gateway closes the connection, whether or not the request
// has a token.
func TestConnections_SlowRequestsAreClosed(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, begin string
		limit       time.Duration
	}{
		{"says nothing", "", 11 * time.Second},
		{"a head without end", "POST /mcp/files HTTP/1.1\r\nHost: localhost\r\nX-A: ", 11 * time.Second},
		{"a body without end, without a token", requestHead("", "", 10), 31 * time.Second},
		{"a body without end, with a wrong token", requestHead(strings.Repeat("x", 40), "", 10), 31 * time.Second},
		{"a body without end, for another host", strings.Replace(requestHead("", "", 10), "localhost", "evil.example", 1), 31 * time.Second},
		{"a body without end, for no server", strings.Replace(requestHead(anaToken, "", 10), "/mcp/files", "/mcp/none", 1), 31 * time.Second},
		{"a body without end, of another type", strings.Replace(requestHead(anaToken, "", 10), "application/json", "text/plain", 1), 31 * time.Second},
		{"a body without end, with a good token", requestHead(anaToken, "", 10) + "{", 31 * time.Second},
		{"a body where none belongs", "GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n", 31 * time.Second},
		{"a body of a terabyte", requestHead(anaToken, "", 1<<40) + "{", 31 * time.Second},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newTestGateway(t)
				c := w.dial()
				defer c.Close()
				go func() {
					for _, b := range []byte(tt.begin) {
						if _, err := c.Write([]byte{b}); err != nil {
							return
						}
					}
				}()
				endsWithin(t, c, tt.limit)
			})
		})
	}
}

// Case N2.
func TestConnections_IdleOnesAreClosed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTestGateway(t)
		c := w.dial()
		defer c.Close()
		go fmt.Fprint(c, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
		endsWithin(t, c, 2*time.Minute+time.Second)
	})
}

// Case N2. The gateway disconnects a client that does not read its answer. Until then, the gateway still receives the
// server's answer and records the outcome without delay.
func TestConnections_ClosedWhenTheClientDoesNotRead(t *testing.T) {
	t.Parallel()
	progress := []byte(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":1,"message":"` + strings.Repeat("x", 8<<10) + `"}}`)
	tests := []struct {
		name string
		do   func(context.Context, upstream.Request, func([]byte)) (upstream.Answer, error)
	}{
		{"events", func(_ context.Context, r upstream.Request, events func([]byte)) (upstream.Answer, error) {
			for range 100 {
				events(progress)
			}
			return gatewaytest.Result(r, `{}`), nil
		}},
		{"a long answer", func(_ context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
			return gatewaytest.Result(r, `{"x":"`+strings.Repeat("x", 1<<20)+`"}`), nil
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newTestGateway(t)
				id := w.connect().Get("Mcp-Session-Id")
				w.files.Request = tt.do
				c := w.dial()
				defer c.Close()
				if _, err := fmt.Fprint(c, requestHead(anaToken, id, len(toolCall))+toolCall); err != nil {
					t.Fatal(err)
				}
				time.Sleep(30 * time.Second) // the client does not read during this time
				if n := len(w.Journal.Records(journal.KindOutcome)); n != 1 {
					t.Errorf("%d outcomes are on record after 30 s", n)
				}
				for _, st := range w.Sessions.List("acme") {
					if st.InFlight != 0 {
						t.Error("the session is held as in use")
					}
				}
				if _, err := c.Write([]byte("x")); err == nil {
					t.Error("the connection is held")
				}
			})
		})
	}
}

// Case N2. The gateway disconnects a client that sends many requests and does not read the responses, even if the
// responses have no body.
func TestConnections_PipeliningWithoutReadingIsBounded(t *testing.T) {
	t.Parallel()
	const nothing = `{"jsonrpc":"2.0","id":9,"result":{}}` // the response is 202 without a body
	for name, request := range map[string]func(session string) string{
		"answers with a body":    func(string) string { return requestHead("", "", 0) },
		"answers without a body": func(session string) string { return requestHead(anaToken, session, len(nothing)) + nothing },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newTestGateway(t)
				text := request(w.connect().Get("Mcp-Session-Id"))
				c := w.dial()
				defer c.Close()
				go func() {
					for {
						if _, err := fmt.Fprint(c, text); err != nil {
							return
						}
					}
				}()
				time.Sleep(time.Minute)
				if _, err := c.Write([]byte("x")); err == nil {
					t.Error("the connection is held")
				}
			})
		})
	}
}

// isInFlightRefusal reports whether a response is a recorded refusal because of too many requests in flight.
func (w *testGateway) isInFlightRefusal(got httpResponse) bool {
	records := w.Journal.Records(journal.KindRefusal)
	return got.status == 429 && got.code() == "abuse_limited" && strings.Contains(got.body, "in flight") &&
		len(records) > 0 && records[len(records)-1].Code == "abuse_limited" && records[len(records)-1].Subject == "ana"
}

const ping = `{"jsonrpc":"2.0","id":1,"method":"ping"}`

// Case N2. One principal sends more requests to a slow server than its quota allows. The excess requests are refused.
// Other principals are not affected.
func TestRequestsInFlight_CountIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTestGateway(t)
		anas := w.connect()
		ben := http.Header{"Authorization": {"Bearer " + benToken}}
		ben.Set("Mcp-Session-Id", w.do("POST", "/mcp/files", initialize, ben).header.Get("Mcp-Session-Id"))
		slow := w.files.Request
		w.files.Request = func(ctx context.Context, r upstream.Request, events func([]byte)) (upstream.Answer, error) {
			time.Sleep(30 * time.Second)
			return slow(ctx, r, events)
		}
		var waiting sync.WaitGroup
		for range 256 { // the limit for one server
			waiting.Go(func() {
				if got := w.do("POST", "/mcp/files", toolCall, anas); got.status != 200 || got.code() != "" {
					t.Errorf("%d %s", got.status, got.body)
				}
			})
		}
		time.Sleep(time.Second)
		if got := w.do("POST", "/mcp/files", toolCall, anas); got.code() != "abuse_limited" {
			t.Errorf("one request more: %d %s", got.status, got.body)
		}
		if got := w.do("POST", "/mcp/files", ping, anas); got.status != 200 || got.code() != "" {
			t.Errorf("what asks nothing of the server: %d %s", got.status, got.body)
		}
		if got := w.do("POST", "/mcp/files", toolCall, ben); got.status != 200 || got.code() != "" {
			t.Errorf("another caller: %d %s", got.status, got.body)
		}
		waiting.Wait()
		if got := w.do("POST", "/mcp/files", toolCall, anas); got.status != 200 || got.code() != "" {
			t.Errorf("later: %d %s", got.status, got.body)
		}
	})
}

// Case N2. The memory for one principal's requests is limited. Announced bytes that have not arrived do not count.
func TestRequestsInFlight_BytesAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTestGateway(t)
		h := w.connect()
		const size = 4 << 20
		withheld := []byte(strings.Repeat(" ", size-1))
		for range 16 {
			c := w.dial()
			defer c.Close()
			if _, err := fmt.Fprintf(c, "%s%s", requestHead(anaToken, "", size), withheld); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait() // wait until the gateway has read the bytes
		if got := w.do("POST", "/mcp/files", ping, h); got.status != 429 || !w.isInFlightRefusal(got) {
			t.Errorf("64 MiB are held, and one request more: %d %s", got.status, got.body)
		}
		time.Sleep(31 * time.Second) // the gateway closes the connections
		if got := w.do("POST", "/mcp/files", ping, h); got.status != 200 || got.code() != "" {
			t.Errorf("later: %d %s", got.status, got.body)
		}
	})
}

// Case N2. The memory for requests from all agents of one person is limited to the quota of two agents. Agents of other
// persons are not affected.
func TestRequestsInFlight_BytesOfOnePersonAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTestGateway(t)
		const size = 4 << 20
		withheld := []byte(strings.Repeat(" ", size-1))
		for i := range 3 {
			for range 16 {
				c := w.dial()
				defer c.Close()
				go fmt.Fprintf(c, "%s%s", requestHead(agentToken(i), "", size), withheld)
				synctest.Wait()
			}
		}
		if n := len(w.Journal.Records(journal.KindRefusal)); n != 16 {
			t.Errorf("%d requests of the third agent were refused, want 16", n)
		}
		large := strings.Replace(ping, `"ping"`, `"ping","x":"`+strings.Repeat("x", size/2)+`"`, 1)
		if got := w.do("POST", "/mcp/files", large, http.Header{"Authorization": {"Bearer " + benToken}}); got.status == http.StatusTooManyRequests {
			t.Errorf("another caller's request: %d %s", got.status, got.body)
		}
		time.Sleep(31 * time.Second) // the gateway closes the connections
	})
}

// A long call is not cut off by the timeouts for receiving requests. The next call on the same connection is not cut
// off either.
func TestConnections_LongCallIsNotClosed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTestGateway(t)
		h := w.connect()
		w.files.Request = func(ctx context.Context, r upstream.Request, events func([]byte)) (upstream.Answer, error) {
			for range 5 {
				time.Sleep(10 * time.Second)
				events([]byte(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":1}}`))
			}
			return gatewaytest.Result(r, `{}`), ctx.Err()
		}
		for range 2 {
			got := w.do("POST", "/mcp/files", toolCall, h)
			if got.status != 200 || strings.Count(got.body, "data: {") != 6 {
				t.Fatalf("%d %s", got.status, got.body)
			}
		}
	})
}

// A client disconnects during its call. The call continues, and the outcome is recorded.
func TestCall_EndsAfterItsClientHasDisconnected(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTestGateway(t)
		id := w.connect().Get("Mcp-Session-Id")
		w.files.Request = func(ctx context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
			time.Sleep(10 * time.Second)
			return gatewaytest.Result(r, `{}`), ctx.Err()
		}
		c := w.dial()
		if _, err := fmt.Fprint(c, requestHead(anaToken, id, len(toolCall))+toolCall); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		c.Close()
		time.Sleep(10 * time.Second)
		if out := w.Journal.Records(journal.KindOutcome); len(out) != 1 || out[0].ResultClass != journal.ResultOK {
			t.Errorf("%+v", out)
		}
	})
}
