package streamable_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream/streamable"
	"github.com/sluice-mesh/sluice/services/internal/principal"
)

const roots = `{"jsonrpc":"2.0","id":1,"method":"roots/list"}`

const progress = `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":1}}`

func TestRequest_ReturnsTheAnswer(t *testing.T) {
	t.Parallel()
	answer := `{"jsonrpc":"2.0","id":ID,"result":{"n":9007199254740993}}`
	tests := []struct {
		name  string
		reply webReply
		want  string
		seen  []string
	}{
		{"as JSON", plain(200, "application/json; charset=utf-8", answer), answer, nil},
		{"as one event", events("data: " + answer + "\n\n"), answer, nil},
		{"as an event with all its fields", events("id: 7\r\nevent: message\r\nretry: 10\r\ndata:" + answer + "\r\n\r\n"), answer, nil},
		{"over several lines", events("data: {\"jsonrpc\":\"2.0\",\ndata: \"id\":ID,\"result\":{}}\n\n"), "{\"jsonrpc\":\"2.0\",\n\"id\":ID,\"result\":{}}", nil},
		{"after a priming event", events("id: 1\nretry: 100\ndata:\n\ndata: " + answer + "\n\n"), answer, nil},
		{"after comments", events(": hello\n\n: again\n\ndata: " + answer + "\n\n"), answer, nil},
		{"after an event of another type", events("event: ping\ndata: 2026-01-01\n\ndata: " + answer + "\n\n"), answer, nil},
		{"after progress", events("data: " + progress + "\n\ndata: " + answer + "\n\n"), answer, []string{progress}},
		{"after the answer to another request", events("data: {\"jsonrpc\":\"2.0\",\"id\":99,\"result\":{}}\n\ndata: " + answer + "\n\n"), answer, nil},
		{"after a request of the server's", events("data: " + roots + "\n\ndata: " + answer + "\n\n"), answer, []string{roots}},
		{"an error of the protocol, whatever the status", plain(400, "application/json", `{"jsonrpc":"2.0","id":ID,"error":{"code":-32602,"message":"x"}}`), `{"jsonrpc":"2.0","id":ID,"error":{"code":-32602,"message":"x"}}`, nil},
	}
	for _, tt := range tests {
		for size, blanks := range sizes {
			t.Run(tt.name+", asked by a "+size+" message", func(t *testing.T) {
				t.Parallel()
				s := newWeb(t)
				conn := openHTTP(t, s.URL)
				s.on("tools/call", tt.reply)
				var seen []string
				got, err := conn.Request(within(t, soon), padded(withProgress(message("tools/call", `"a"`), "1"), blanks), func(m []byte) { seen = append(seen, string(m)) })
				if err != nil {
					t.Fatal(err)
				}
				if want := strings.ReplaceAll(tt.want, "ID", `"a"`); string(got.Message.Raw) != want {
					t.Errorf("got %s, want %s", got.Message.Raw, want)
				}
				if diff := cmp.Diff(tt.seen, seen); diff != "" {
					t.Errorf("events (-want +got):\n%s", diff)
				}
			})
		}
	}
}

// Case U1. A progress notification before an answer is forwarded only if it belongs to the request. All other
// notifications are passed to the receiver, which checks them.
func TestRequest_PassesOnItsOwnProgress(t *testing.T) {
	t.Parallel()
	notify := func(method, params string) string {
		return `{"jsonrpc":"2.0","method":"` + method + `","params":{` + params + `}}`
	}
	messages := []string{
		notify("notifications/progress", `"progressToken":"mine","progress":1`),
		notify("notifications/progress", `"progressToken":"another's","progress":1`),
		notify("notifications/progress", `"progress":1`),
		notify("notifications/message", `"level":"info","data":"x"`),
		notify("notifications/cancelled", `"requestId":9`),
		notify("notifications/tools/list_changed", ""),
		notify("evil", ""),
	}
	stream := events("data: " + strings.Join(messages, "\n\ndata: ") + "\n\ndata: {\"jsonrpc\":\"2.0\",\"id\":ID,\"result\":{}}\n\n")
	for name, tt := range map[string]struct {
		req  upstream.Request
		want []string
	}{
		"progress was asked for":     {withProgress(message("tools/call", "1"), `"m\u0069ne"`), append(messages[:1:1], messages[3:]...)},
		"progress was not asked for": {message("tools/call", "1"), messages[3:]},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newWeb(t)
			over := newHTTP(t, s.URL)
			conn := openOver(t, over)
			s.on("tools/call", stream)
			var seen []string
			if _, err := conn.Request(within(t, soon), tt.req, func(m []byte) { seen = append(seen, string(m)) }); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, seen); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
			if len(over.ToolsChanged()) == 0 {
				t.Error("the change of the tools is not signalled")
			}
		})
	}
}

func TestRequest_SendsOnlyItsBytesAndOwnHeaders(t *testing.T) {
	t.Parallel()
	s := newWeb(t)
	conn := openHTTP(t, s.URL)
	req := message("tools/call", "1")
	req.Message.Raw = []byte("{ \"jsonrpc\":\"2.0\",\"id\":1,\n\"method\":\"tools/call\"}")
	req.Message.ID = spanOf(string(req.Message.Raw), "1,\n")
	req.Message.ID.End = req.Message.ID.Start + 1
	req.TraceParent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	if _, err := conn.Request(within(t, soon), req, nil); err != nil {
		t.Fatal(err)
	}
	got := s.got("tools/call")
	if len(got) != 1 || !bytes.Equal(got[0].body, req.Body()) {
		t.Fatalf("the server got %d requests, the first %s", len(got), got[0].body)
	}
	want := http.Header{
		"Authorization": {"Bearer ours"}, "Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"},
		"Traceparent": {req.TraceParent}, "Mcp-Session-Id": {"first"}, "Mcp-Protocol-Version": {"2025-11-25"},
		"User-Agent": {"Go-http-client/1.1"}, "Content-Length": {fmt.Sprint(len(req.Body()))},
	}
	if diff := cmp.Diff(want, got[0].header); diff != "" {
		t.Errorf("headers (-want +got):\n%s", diff)
	}
}

// Case U1. After an unusable answer the outcome is unknown, regardless of the status, because the request was sent.
func TestRequest_ErrorSaysWhatIsKnown(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		reply  webReply
		want   error
		status int
	}{
		{"another id", plain(200, "application/json", `{"jsonrpc":"2.0","id":99,"result":{}}`), upstream.ErrNoAnswer, 200},
		{"two answers", plain(200, "application/json", `[{"jsonrpc":"2.0","id":ID,"result":{}}]`), upstream.ErrNoAnswer, 200},
		{"a request instead", plain(200, "application/json", `{"jsonrpc":"2.0","id":ID,"method":"ping"}`), upstream.ErrNoAnswer, 200},
		{"no JSON", plain(200, "application/json", `<html>`), upstream.ErrNoAnswer, 200},
		{"another type", plain(200, "text/html", `<html>`), upstream.ErrNoAnswer, 200},
		{"nothing", plain(202, "application/json", ``), upstream.ErrNoAnswer, 202},
		{"the code of our own refusals", plain(200, "application/json", `{"jsonrpc":"2.0","id":ID,"error":{"code":-31403,"message":"x"}}`), upstream.ErrNoAnswer, 200},
		{"the code of our own refusals, as an event", events("data: {\"jsonrpc\":\"2.0\",\"id\":ID,\"error\":{\"code\":-31403,\"message\":\"x\"}}\n\n"), upstream.ErrNoAnswer, 200},
		{"the same number, written otherwise", plain(200, "application/json", `{"jsonrpc":"2.0","id":ID,"error":{"code":-31403.0,"message":"x"}}`), upstream.ErrNoAnswer, 200},
		{"the same number, with an exponent", plain(200, "application/json", `{"jsonrpc":"2.0","id":ID,"error":{"code":-3.1403e4,"message":"x"}}`), upstream.ErrNoAnswer, 200},
		{"the same number to readers of floats", plain(200, "application/json", `{"jsonrpc":"2.0","id":ID,"error":{"code":-31403.0000000000000001,"message":"x"}}`), upstream.ErrNoAnswer, 200},
		{"the same number to readers of strings", plain(200, "application/json", `{"jsonrpc":"2.0","id":ID,"error":{"code":"\u002d31403","message":"x"}}`), upstream.ErrNoAnswer, 200},
		{"an error without a code", plain(200, "application/json", `{"jsonrpc":"2.0","id":ID,"error":{"message":"x"}}`), upstream.ErrNoAnswer, 200},
		{"a redirect", func(w http.ResponseWriter, r *http.Request, _ webPost) {
			http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
		}, upstream.ErrNoAnswer, 307},
		{"an error", plain(500, "text/plain", "x"), upstream.ErrNoAnswer, 500},
		{"R2: not authorized", plain(401, "text/plain", "x"), upstream.ErrNoAnswer, 401},
		{"R2: forbidden", plain(403, "text/plain", "x"), upstream.ErrNoAnswer, 403},
		{"R2: not allowed", plain(405, "text/plain", "x"), upstream.ErrNoAnswer, 405},
		{"R2: too large", plain(413, "text/plain", "x"), upstream.ErrNoAnswer, 413},
		{"R2: unsupported type", plain(415, "text/plain", "x"), upstream.ErrNoAnswer, 415},
		{"R2: too many requests", plain(429, "text/plain", "x"), upstream.ErrNoAnswer, 429},
		{"a stream that is cut", events("data: " + progress + "\n\n"), upstream.ErrNoAnswer, 200},
		{"a stream that is cut inside the answer", events("data: {\"jsonrpc\":\"2.0\",\"id\":ID,\"result\":{}}\n"), upstream.ErrNoAnswer, 200},
		{"a stream that says nothing", hanging(events("")), upstream.ErrTimeout, 200},
		{"an answer that stops in the middle", hanging(plain(200, "application/json", `{"jsonrpc":`)), upstream.ErrTimeout, 200},
		{"an answer that never begins", func(_ http.ResponseWriter, r *http.Request, _ webPost) { <-r.Context().Done() }, upstream.ErrTimeout, 0},
		{"a stream that trickles", trickle, upstream.ErrTimeout, 200},
		{"a connection that is cut", func(w http.ResponseWriter, _ *http.Request, _ webPost) { cutOff(w) }, upstream.ErrNoAnswer, 0},
	}
	for _, tt := range tests {
		for size, blanks := range sizes {
			t.Run(tt.name+", asked by a "+size+" message", func(t *testing.T) {
				t.Parallel()
				s := newWeb(t)
				conn := openHTTP(t, s.URL)
				s.on("tools/call", tt.reply)
				timeout := soon
				if errors.Is(tt.want, upstream.ErrTimeout) {
					timeout = 300 * time.Millisecond
				}
				answer, err := conn.Request(within(t, timeout), padded(message("tools/call", "1"), blanks), func([]byte) {})
				if !errors.Is(err, tt.want) || answer.Status != tt.status {
					t.Errorf("status %d, %v; want %d, %v", answer.Status, err, tt.status, tt.want)
				}
				for _, other := range []error{upstream.ErrNeverSent, upstream.ErrNoAnswer, upstream.ErrTimeout} {
					if !errors.Is(tt.want, other) && errors.Is(err, other) {
						t.Errorf("the error is %v too: %v", other, err)
					}
				}
				if n := len(s.got("tools/call")); n != 1 {
					t.Errorf("the request was sent %d times", n)
				}
			})
		}
	}
}

// trickle sends comments at short intervals and never ends.
func trickle(w http.ResponseWriter, r *http.Request, _ webPost) {
	w.Header().Set("Content-Type", "text/event-stream")
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-r.Context().Done():
			return
		case <-tick.C:
			fmt.Fprint(w, ":\n\n")
			_ = http.NewResponseController(w).Flush()
		}
	}
}

func cutOff(w http.ResponseWriter) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err == nil {
		_ = conn.Close()
	}
}

// Case U1.
func TestRequest_LimitsAnswers(t *testing.T) {
	t.Parallel()
	big := strings.Repeat("x", upstream.MaxMessage)
	tests := []struct {
		name  string
		reply webReply
	}{
		{"a declared length", func(w http.ResponseWriter, _ *http.Request, _ webPost) {
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Content-Length", "1000000000000")
			w.WriteHeader(200)
		}},
		{"a body", plain(200, "application/json", `{"jsonrpc":"2.0","id":ID,"result":{"x":"`+big+`"}}`)},
		{"an event", events("data: " + big + "x\n\n")},
		{"an event of many lines", events(strings.Repeat("data: "+big[:1<<20]+"\n", 17) + "\n")},
		{"a head", func(w http.ResponseWriter, _ *http.Request, _ webPost) {
			w.Header().Set("X-Big", big[:1<<20])
			w.WriteHeader(200)
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := newWeb(t)
			conn := openHTTP(t, s.URL)
			s.on("tools/call", tt.reply)
			if _, err := conn.Request(within(t, 4*soon), message("tools/call", "1"), nil); !errors.Is(err, upstream.ErrNoAnswer) {
				t.Errorf("got %v, want %v", err, upstream.ErrNoAnswer)
			}
		})
	}
}

// Case U1. A server leaves its stream open after the answer. This does not delay requests.
func TestRequest_DoesNotWaitForTheEndOfAStream(t *testing.T) {
	t.Parallel()
	s := newWeb(t)
	conn := openHTTP(t, s.URL)
	s.on("tools/call", hanging(events("data: {\"jsonrpc\":\"2.0\",\"id\":ID,\"result\":{}}\n\n")))
	s.on("notifications/cancelled", hanging(events("")))
	begin := time.Now()
	for _, blanks := range sizes {
		if _, err := conn.Request(within(t, 20*time.Second), padded(message("tools/call", "1"), blanks), nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := conn.Notify(within(t, 20*time.Second), message("notifications/cancelled", "")); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begin); took > soon {
		t.Errorf("the answers took %v", took)
	}
}

// After a response has ended, the next request reuses the connection.
func TestRequest_ReusesConnections(t *testing.T) {
	t.Parallel()
	for name, reply := range map[string]webReply{
		"after JSON":           plain(200, "application/json", `{"jsonrpc":"2.0","id":ID,"result":{}}`),
		"after a stream":       events("data: {\"jsonrpc\":\"2.0\",\"id\":ID,\"result\":{}}\n\n"),
		"after a notification": nil,
		"after an error page":  plain(500, "text/html", strings.Repeat("x", 1000)),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newWeb(t)
			conn := openHTTP(t, s.URL)
			if reply != nil {
				s.on("tools/call", reply)
			}
			for range 10 {
				_, _ = conn.Request(within(t, soon), message("tools/call", "1"), nil)
				_ = conn.Notify(within(t, soon), message("notifications/progress", ""))
			}
			if n := s.connections.Load(); n > 3 { // a busy machine may need another connection
				t.Errorf("%d connections were made for 20 messages", n)
			}
		})
	}
}

func TestRequest_UnsentRequestCountsAsNeverSent(t *testing.T) {
	t.Parallel()
	t.Run("the port is closed", func(t *testing.T) {
		t.Parallel()
		s := newWeb(t)
		up := newHTTP(t, s.URL)
		conn, _, err := up.Open(within(t, soon), principal.Key{}, message("initialize", "0"))
		if err != nil {
			t.Fatal(err)
		}
		_ = s.Listener.Close()
		_ = up.Close() // closes the idle connections
		if _, err := conn.Request(within(t, soon), message("tools/call", "1"), nil); !errors.Is(err, upstream.ErrNeverSent) {
			t.Errorf("got %v, want %v", err, upstream.ErrNeverSent)
		}
	})
	t.Run("the time is up before", func(t *testing.T) {
		t.Parallel()
		conn := openHTTP(t, newWeb(t).URL)
		ctx, cancel := context.WithTimeout(t.Context(), -1)
		defer cancel()
		if _, err := conn.Request(ctx, message("tools/call", "1"), nil); !errors.Is(err, upstream.ErrNeverSent) {
			t.Errorf("got %v, want %v", err, upstream.ErrNeverSent)
		}
	})
}

// Case S2. An error contains the server's name but not its URL, which may contain a secret.
func TestErrors_ContainNoSecrets(t *testing.T) {
	t.Parallel()
	s := newWeb(t)
	up := newHTTP(t, s.URL+"/mcp?key=CANARY")
	conn, _, err := up.Open(within(t, soon), principal.Key{}, message("initialize", "0"))
	if err != nil {
		t.Fatal(err)
	}
	s.CloseClientConnections()
	_ = s.Listener.Close()
	_, requestErr := conn.Request(within(t, soon), message("tools/call", "1"), nil)
	for what, err := range map[string]error{
		"a request": requestErr, "a notification": conn.Notify(within(t, soon), message("notifications/x", "")), "an end": conn.Close(within(t, soon)),
	} {
		if err == nil || strings.Contains(err.Error(), "CANARY") {
			t.Errorf("the error of %s is %v", what, err)
		}
	}
}

// Case S1. Answers and events contain no secret, even if the server returns the data that it has received.
func TestRequest_RedactsSecretsInAnswers(t *testing.T) {
	t.Parallel()
	const secret = "ours-and-nobody-else's"
	messages := `{"jsonrpc":"2.0","method":"notifications/message","params":{"data":"` + secret + `"}}`
	answer := `{"jsonrpc":"2.0","id":ID,"result":{"you sent":"Bearer ` + secret + `","n":1.50}}`
	want := strings.NewReplacer(secret, "[redacted]", "ID", "1").Replace(answer)
	for name, reply := range map[string]webReply{
		"as JSON":   plain(200, "application/json", answer),
		"as events": events("data: " + messages + "\n\ndata: " + answer + "\n\n"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newWeb(t)
			s.on("tools/call", reply)
			up, err := streamable.New(streamable.Config{
				Name: "web", URL: s.URL, Headers: map[string]string{"Authorization": "Bearer " + secret}, Secrets: []string{secret},
			}, slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			defer up.Close()
			conn, _, err := up.Open(within(t, soon), principal.Key{}, message("initialize", "0"))
			if err != nil {
				t.Fatal(err)
			}
			got, err := conn.Request(within(t, soon), message("tools/call", "1"), func(m []byte) {
				if strings.Contains(string(m), secret) {
					t.Errorf("the event %s came", m)
				}
			})
			if err != nil {
				t.Fatal(err)
			}
			if string(got.Message.Raw) != want {
				t.Errorf("got %s, want %s", got.Message.Raw, want)
			}
		})
	}
}

func TestNew_RefusesInvalidConfigurations(t *testing.T) {
	t.Parallel()
	log := slog.New(slog.DiscardHandler)
	tests := []struct {
		name string
		cfg  streamable.Config
		log  *slog.Logger
	}{
		{"no log", streamable.Config{Name: "x", URL: "http://localhost/mcp"}, nil},
		{"no URL", streamable.Config{Name: "x"}, log},
		{"no host", streamable.Config{Name: "x", URL: "http:///mcp"}, log},
		{"a scheme that is not HTTP", streamable.Config{Name: "x", URL: "ftp://localhost/mcp"}, log},
		{"a header's name with a space", streamable.Config{Name: "x", URL: "http://localhost/", Headers: map[string]string{"A b": "x"}}, log},
		{"an empty header's name", streamable.Config{Name: "x", URL: "http://localhost/", Headers: map[string]string{"": "x"}}, log},
		{"a header with a new line", streamable.Config{Name: "x", URL: "http://localhost/", Headers: map[string]string{"A": "SECRET\r\nB: c"}}, log},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if _, err := streamable.New(tt.cfg, tt.log); err == nil || strings.Contains(err.Error(), "SECRET") {
				t.Errorf("got %v, want an error without the secret", err)
			}
		})
	}
}
