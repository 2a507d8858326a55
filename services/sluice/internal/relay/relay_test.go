package relay_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/sluice-mesh/sluice/services/internal/eventually"
	"github.com/sluice-mesh/sluice/services/sluice/internal/relay"
	"github.com/sluice-mesh/sluice/services/sluice/internal/tokenhttp"
)

type fakeMesh struct {
	*httptest.Server

	mu sync.Mutex
	// live is the id of the current session, and opened is the number of sessions so far.
	live   string
	opened int
	posts  []string
	gets   []http.Header
	ended  []string
	// stream is the content of a session's GET stream. If it is empty, the mesh has no GET stream.
	stream string
}

func newFakeMesh(t *testing.T) *fakeMesh {
	t.Helper()
	m := new(fakeMesh)
	m.Server = httptest.NewServer(http.HandlerFunc(m.serve))
	t.Cleanup(m.Close)
	return m
}

func (m *fakeMesh) serve(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	text := string(body)
	m.mu.Lock()
	defer m.mu.Unlock()
	known := r.Header.Get("Mcp-Session-Id") == m.live && m.live != ""
	fail := func(status, code int, message string) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":null,"error":{"code":%d,"message":%q,"data":{"code":"x"}}}`, code, message)
	}
	switch {
	case r.Header.Get("Authorization") != "Bearer token":
		fail(401, -32600, "who are you")
	case r.Method == http.MethodDelete:
		m.ended = append(m.ended, r.Header.Get("Mcp-Session-Id"))
	case strings.Contains(text, `"initialize"`):
		m.opened++
		m.live = fmt.Sprintf("s%d", m.opened)
		w.Header().Set("Mcp-Session-Id", m.live)
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, "{\"jsonrpc\":\"2.0\",\n\"id\":0,\"result\":{\"protocolVersion\":\"2025-11-25\"}}\r\n")
	case !known:
		fail(404, -32600, "no such session")
	case r.Method == http.MethodGet:
		m.gets = append(m.gets, r.Header)
		if m.stream == "" {
			w.WriteHeader(http.StatusMethodNotAllowed)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, m.stream)
	default:
		m.posts = append(m.posts, text)
		switch {
		case strings.Contains(text, `"stream"`):
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, ": hello\n\nevent: message\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\"}\n\ndata: {\"jsonrpc\":\"2.0\",\"id\":3,\"result\":{\"n\":12345678901234567890}}\n\n")
		case strings.Contains(text, `"bad"`):
			fail(400, -32602, "not so")
		case strings.Contains(text, `"half"`):
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\"}\n\n")
		case strings.Contains(text, `"html"`):
			w.Header().Set("Content-Type", "text/html")
			_, _ = io.WriteString(w, "<html>")
		case strings.Contains(text, `"page"`):
			w.WriteHeader(http.StatusBadGateway)
			_, _ = io.WriteString(w, "<html>")
		case strings.Contains(text, `"id"`) && strings.Contains(text, `"method"`):
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":2,"result":{"x":1.50}}`) // the response to call
		default:
			w.WriteHeader(http.StatusAccepted)
		}
	}
}

func (m *fakeMesh) forget() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.live = "gone"
}

type client struct {
	t     *testing.T
	in    *io.PipeWriter
	lines chan string
	ended chan error
}

func startRelay(t *testing.T, url, token string) *client {
	t.Helper()
	in, write := io.Pipe()
	read, out := io.Pipe()
	c := &client{t: t, in: write, lines: make(chan string, 100), ended: make(chan error, 1)}
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		err := relay.Run(ctx, relay.Config{Endpoint: at(url), Token: token, Client: tokenhttp.New(nil, ""), Log: slog.New(slog.DiscardHandler)}, in, out)
		_ = out.Close()
		c.ended <- err
	}()
	go func() {
		defer close(c.lines)
		for lines := bufio.NewScanner(read); lines.Scan(); {
			c.lines <- lines.Text()
		}
	}()
	t.Cleanup(func() {
		cancel()
		_ = write.Close()
		_ = read.Close()
	})
	return c
}

func (c *client) send(line string) {
	c.t.Helper()
	if _, err := io.WriteString(c.in, line+"\n"); err != nil {
		c.t.Fatal(err)
	}
}

const (
	hello = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"x":9007199254740993}}`
	ready = `{"jsonrpc":"2.0","method":"notifications/initialized"}`
	call  = `{"jsonrpc":"2.0","id":2,"method":"tools/call"}`
)

// The client's messages arrive unchanged in the session that the client opened. Each response is one line. When the
// client closes its output, the relay ends the session.
func TestRun_ForwardsMessagesUnchanged(t *testing.T) {
	t.Parallel()
	m := newFakeMesh(t)
	c := startRelay(t, m.URL, "token")
	c.send(hello)
	if got := <-c.lines; got != `{"jsonrpc":"2.0", "id":0,"result":{"protocolVersion":"2025-11-25"}}` {
		t.Errorf("initialize was answered with %s", got)
	}
	c.send("")
	c.send(ready)
	c.send(call)
	if got := <-c.lines; got != `{"jsonrpc":"2.0","id":2,"result":{"x":1.50}}` {
		t.Errorf("answered %s", got)
	}
	c.send(`{"jsonrpc":"2.0","id":3,"method":"stream"}`)
	if got := []string{<-c.lines, <-c.lines}; got[0] != `{"jsonrpc":"2.0","method":"notifications/progress"}` || got[1] != `{"jsonrpc":"2.0","id":3,"result":{"n":12345678901234567890}}` {
		t.Errorf("answered %q", got)
	}
	c.send(`{"jsonrpc":"2.0","id":7,"result":{}}`)
	c.send(`{"jsonrpc":"2.0","id":"a","method":"bad"}`)
	if got := <-c.lines; got != `{"jsonrpc":"2.0","id":"a","error":{"code":-32602,"message":"not so","data":{"code":"x"}}}` {
		t.Errorf("refused with %s", got)
	}
	c.send(`{"jsonrpc":"2.0","id":9,"method":"page"}`)
	if got := <-c.lines; !strings.HasPrefix(got, `{"jsonrpc":"2.0","id":9,"error":{"code":-32603,"message":"`) || !strings.Contains(got, "502") {
		t.Errorf("the error page of a proxy became %s", got)
	}
	c.send(`{"jsonrpc":"2.0","id":10,"method":"html"}`)
	if got := <-c.lines; !strings.HasPrefix(got, `{"jsonrpc":"2.0","id":10,"error":{"code":-32603,"message":"the server at this URL is not a mesh`) {
		t.Errorf("the page of another server became %s", got)
	}
	c.send(`{"jsonrpc":"2.0","id":11,"method":"half"}`)
	if got := []string{<-c.lines, <-c.lines}; !strings.HasPrefix(got[1], `{"jsonrpc":"2.0","id":11,"error":{"code":-32603,"message":"the mesh ended its answer`) {
		t.Errorf("a stream without the response became %s", got)
	}
	_ = c.in.Close()
	if err := <-c.ended; err != nil {
		t.Errorf("Run returned %v", err)
	}
	want := []string{ready, call, `{"jsonrpc":"2.0","id":3,"method":"stream"}`, `{"jsonrpc":"2.0","id":7,"result":{}}`}
	if !slices.Equal(m.posts[:4], want) || !slices.Equal(m.ended, []string{"s1"}) {
		t.Errorf("posted %q, ended %q", m.posts, m.ended)
	}
}

// The mesh no longer has the session, and the client sends several requests. The relay opens only one new session, for
// which it uses the client's own messages.
func TestRun_OpensALostSessionAgainOnce(t *testing.T) {
	t.Parallel()
	m := newFakeMesh(t)
	c := startRelay(t, m.URL, "token")
	c.send(hello)
	<-c.lines
	c.send(ready)
	c.send(call)
	<-c.lines
	m.forget()
	for range 5 {
		c.send(call)
	}
	for range 5 {
		if got := <-c.lines; got != `{"jsonrpc":"2.0","id":2,"result":{"x":1.50}}` {
			t.Errorf("answered %s", got)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if told := strings.Count(strings.Join(m.posts, "\n"), "notifications/initialized"); m.opened != 2 || told != 2 {
		t.Errorf("%d sessions were opened, and %d initialized notifications were sent", m.opened, told)
	}
}

// The client receives the events of the GET stream, even after the stream has ended and was reopened.
func TestRun_ReadsTheStreamAgainAfterItEnds(t *testing.T) {
	t.Parallel()
	m := newFakeMesh(t)
	m.stream = "id: 5\ndata: \n\nid: 6\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/tools/list_changed\"}\n\n"
	c := startRelay(t, m.URL, "token")
	c.send(hello)
	<-c.lines
	c.send(ready)
	for range 2 {
		if got := <-c.lines; got != `{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}` {
			t.Errorf("received %s", got)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if first, next := m.gets[0], m.gets[1]; first.Get("Last-Event-ID") != "" || next.Get("Last-Event-ID") != "6" || next.Get("Mcp-Session-Id") != "s1" || next.Get("Mcp-Protocol-Version") != "2025-11-25" {
		t.Errorf("the headers of the GET requests are %v and %v", first, next)
	}
}

// The current session ends, and the relay opens a new one. The client receives the events of the new session, although
// it sends no request.
func TestRun_ReadsTheStreamOfANewSession(t *testing.T) {
	t.Parallel()
	m := newFakeMesh(t)
	m.stream = "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/tools/list_changed\"}\n\n"
	c := startRelay(t, m.URL, "token")
	c.send(hello)
	<-c.lines
	c.send(ready)
	<-c.lines
	m.forget()
	<-c.lines
	m.mu.Lock()
	defer m.mu.Unlock()
	if last := m.gets[len(m.gets)-1]; m.opened != 2 || last.Get("Mcp-Session-Id") != "s2" {
		t.Errorf("%d sessions were opened, and the last GET request is of session %s", m.opened, last.Get("Mcp-Session-Id"))
	}
}

// A request that can't be delivered is answered with an error, and the relay continues.
func TestRun_AnswersUndeliverableRequestsWithErrors(t *testing.T) {
	t.Parallel()
	m := newFakeMesh(t)
	stranger := startRelay(t, m.URL, "another")
	stranger.send(hello)
	if got := <-stranger.lines; !strings.Contains(got, `"id":0,"error":{"code":-32600,"message":"who are you"`) {
		t.Errorf("with another token: %s", got)
	}
	early := startRelay(t, m.URL, "token")
	early.send(call)
	if got := <-early.lines; !strings.Contains(got, `"id":2,"error":{"code":-32600,"message":"no such session"`) {
		t.Errorf("without a session: %s", got)
	}
	m.Close()
	early.send("no JSON")
	early.send(call)
	if got := <-early.lines; !strings.Contains(got, `"id":2,"error":{"code":-32603,"message":"the mesh does not answer: is it up?`) {
		t.Errorf("without a mesh: %s", got)
	}
}

// The gateway's error says only that the token is not valid. The person also needs to know how to replace the token, so
// the relay adds the command to the error.
func TestRun_NamesTheCommandThatReplacesARefusedToken(t *testing.T) {
	t.Parallel()
	m := newFakeMesh(t)
	read, out := io.Pipe()
	t.Cleanup(func() { _ = read.Close() })
	cfg := relay.Config{
		Endpoint: at(m.URL), Token: "another", NewToken: "`sluice init --http URL`", Client: tokenhttp.New(nil, ""), Log: slog.New(slog.DiscardHandler),
	}
	go func() { _ = relay.Run(t.Context(), cfg, strings.NewReader(hello+"\n"), out) }()
	got, err := bufio.NewReader(read).ReadString('\n')
	if err != nil || !strings.Contains(got, `"id":0,"error"`) || !strings.Contains(got, "who are you") || !strings.Contains(got, "`sluice init --http URL`") {
		t.Errorf("the client got %s, %v", got, err)
	}
}

// Run returns an error if it is canceled, if the client no longer reads, or if the client writes a line that is too
// long.
func TestRun_ReturnsAnErrorWhenItCannotContinue(t *testing.T) {
	t.Parallel()
	m := newFakeMesh(t)
	cfg := relay.Config{Endpoint: at(m.URL), Token: "token", Client: tokenhttp.New(nil, ""), Log: slog.New(slog.DiscardHandler)}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := relay.Run(ctx, cfg, strings.NewReader(""), io.Discard); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	in, _ := io.Pipe()
	read, out := io.Pipe()
	_ = read.Close()
	if err := relay.Run(t.Context(), cfg, io.MultiReader(strings.NewReader(hello+"\n"), in), out); err == nil || !strings.Contains(err.Error(), "the client no longer reads") {
		t.Errorf("without a reader: %v", err)
	}
	if err := relay.Run(t.Context(), cfg, strings.NewReader(strings.Repeat("x", 5<<20)), io.Discard); err == nil || !strings.Contains(err.Error(), "more than 4194304 bytes") {
		t.Errorf("with a line that is too long: %v", err)
	}
	if err := relay.Run(t.Context(), relay.Config{}, strings.NewReader(""), io.Discard); err == nil {
		t.Error("Run accepts an empty Config")
	}
	eventually.Holds(t, "the session is ended", func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		return len(m.ended) == 1
	})
}

func at(url string) func(context.Context, bool) (string, error) {
	return func(context.Context, bool) (string, error) { return url, nil }
}

// After a restart, the mesh has another address, which the relay finds. If no mesh is running, a message may start the
// mesh, but opening a stream may not.
func TestRun_FindsAMeshThatWasStartedAgain(t *testing.T) {
	t.Parallel()
	first, second := newFakeMesh(t), newFakeMesh(t)
	var url atomic.Pointer[string]
	url.Store(&first.URL)
	var streams atomic.Int64
	in, client := io.Pipe()
	read, out := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		ended <- relay.Run(t.Context(), relay.Config{
			Token: "token", Client: tokenhttp.New(nil, ""), Log: slog.New(slog.DiscardHandler),
			Endpoint: func(_ context.Context, start bool) (string, error) {
				if !start {
					streams.Add(1)
				}
				return *url.Load(), nil
			},
		}, in, out)
	}()
	lines := bufio.NewScanner(read)
	ask := func(line string) string {
		if _, err := io.WriteString(client, line+"\n"); err != nil {
			t.Fatal(err)
		}
		lines.Scan()
		return lines.Text()
	}
	if got := ask(hello); !strings.Contains(got, `"id":0,"result"`) {
		t.Fatalf("the first mesh answers %s", got)
	}
	url.Store(&second.URL)
	first.Close()
	if got := ask(hello); !strings.Contains(got, `"id":0,"result"`) {
		t.Errorf("the second mesh answers %s", got)
	}
	if err := client.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if streams.Load() == 0 {
		t.Error("the end of the session may start a mesh")
	}
}

// If the token may not be sent, the client gets an error with the reason.
func TestRun_DoesNotSendTheTokenInCleartext(t *testing.T) {
	t.Parallel()
	var elsewhere atomic.Int64
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { elsewhere.Add(1) }))
	t.Cleanup(other.Close)
	redirects := httptest.NewServer(http.RedirectHandler(other.URL, http.StatusPermanentRedirect))
	t.Cleanup(redirects.Close)
	for url, want := range map[string]string{
		redirects.URL: "no redirect is followed", "http://localhost.evil.example": "the token is not sent", "http://token@127.0.0.1": "the token is not sent",
	} {
		c := startRelay(t, url, "token")
		c.send(hello)
		if got := <-c.lines; !strings.Contains(got, `"id":0,"error"`) || !strings.Contains(got, want) {
			t.Errorf("%s: the client got %s", url, got)
		}
	}
	if n := elsewhere.Load(); n != 0 {
		t.Errorf("%d requests went to the target of the redirect", n)
	}
}
