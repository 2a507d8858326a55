package streamable_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sluice-mesh/sluice/services/gateway/internal/limits"
	ability "github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream/upstreamtest"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
	"github.com/sluice-mesh/sluice/services/internal/principal"
)

// legacyServer is an HTTP+SSE server with messages that the test sets.
type legacyServer struct {
	*httptest.Server

	// place is the endpoint in the server's first event.
	place string
	// said receives a posted message and returns the messages to send on the stream. If it returns nil, no message is
	// sent.
	said func(body string) []string

	mu      sync.Mutex
	posts   []string
	streams []chan string
}

func newOlder(t *testing.T, respond func(body string) []string) *legacyServer {
	t.Helper()
	s := &legacyServer{place: "/messages?id=1", said: respond}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /sse", s.stream)
	mux.HandleFunc("POST /messages", s.post)
	s.Server = httptest.NewServer(mux)
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	return s
}

func (s *legacyServer) stream(w http.ResponseWriter, r *http.Request) {
	messages := make(chan string, 100)
	s.mu.Lock()
	s.streams = append(s.streams, messages)
	endpoint := s.place
	s.mu.Unlock()
	w.Header().Set("Content-Type", "text/event-stream")
	fmt.Fprintf(w, "event: endpoint\ndata: %s\n\n", endpoint)
	_ = http.NewResponseController(w).Flush()
	for {
		select {
		case <-r.Context().Done():
			return
		case text, more := <-messages:
			if !more {
				return
			}
			fmt.Fprintf(w, "event: message\ndata: %s\n\n", text)
			_ = http.NewResponseController(w).Flush()
		}
	}
}

func (s *legacyServer) post(w http.ResponseWriter, r *http.Request) {
	all, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	body := string(all)
	w.WriteHeader(http.StatusAccepted)
	s.mu.Lock()
	s.posts = append(s.posts, r.URL.RequestURI()+" "+body)
	s.mu.Unlock()
	switch id := idOf(body); {
	case id == "": // a notification
	case strings.Contains(body, `"initialize"`):
		s.say(`{"jsonrpc":"2.0","id":` + id + `,"result":{"protocolVersion":"2024-11-05","capabilities":{}}}`)
	default:
		for _, text := range s.said(body) {
			s.say(strings.ReplaceAll(text, "ID", id))
		}
	}
}

func idOf(message string) string {
	var m struct {
		ID json.RawMessage `json:"id"`
	}
	_ = json.Unmarshal([]byte(message), &m) // if this fails, the message has no id
	return string(m.ID)
}

func (s *legacyServer) say(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.streams[len(s.streams)-1] <- text
}

func (s *legacyServer) hangUp() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.streams[len(s.streams)-1])
}

func (s *legacyServer) posted(n int) []string {
	for {
		s.mu.Lock()
		posts := append([]string(nil), s.posts...)
		s.mu.Unlock()
		if len(posts) >= n {
			return posts
		}
		time.Sleep(time.Millisecond)
	}
}

const result = `{"jsonrpc":"2.0","id":ID,"result":{"n":9007199254740993}}`

// The transport connects to the official SDK's HTTP+SSE server at the URL of its stream, and calls a tool. The server
// reports progress, sends a request to its client, reports a changed list, and loses its session when its stream ends.
func TestLegacy_ServerOfTheSDKIsReached(t *testing.T) {
	t.Parallel()
	server := mcp.NewServer(&mcp.Implementation{Name: "older", Version: "1"}, nil)
	type none struct{}
	mcp.AddTool(server, &mcp.Tool{Name: "work"}, func(ctx context.Context, r *mcp.CallToolRequest, _ none) (*mcp.CallToolResult, any, error) {
		if err := r.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: r.Params.GetProgressToken(), Progress: 1}); err != nil {
			return nil, nil, err
		}
		roots, err := r.Session.ListRoots(ctx, nil) //nolint:staticcheck // older servers send this request
		if err != nil {
			return nil, nil, err
		}
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: roots.Roots[0].URI}}}, nil, nil
	})
	web := httptest.NewServer(mcp.NewSSEHandler(func(*http.Request) *mcp.Server { return server }, nil))
	defer web.Close()
	over := newHTTP(t, web.URL)
	hello := upstream.Initialize("2025-06-18", "c", "1", ability.Ability{Capability: "roots", Method: "roots/list"}).Request("", nil)
	conn, answer, err := upstreamtest.Roomy{Transport: over, All: upstreamtest.Answers()}.Open(within(t, soon), principal.Key{}, hello)
	if err != nil || !strings.Contains(string(answer.Message.Raw), `"older"`) {
		t.Fatalf("open: %v", err)
	}
	if err := conn.Notify(within(t, soon), upstream.Initialized().Request("", nil)); err != nil {
		t.Fatal(err)
	}
	var seen []string
	work := judged(t, `{"jsonrpc":"2.0","id":"a","method":"tools/call","params":{"_meta":{"progressToken":7},"name":"work","arguments":{}}}`)
	got, err := conn.Request(within(t, soon), work, func(m []byte) {
		if seen = append(seen, string(m)); strings.Contains(string(m), "roots/list") {
			reply := `{"jsonrpc":"2.0","id":` + idOf(string(m)) + `,"result":{"roots":[{"uri":"file:///r"}]}}`
			if err := conn.Notify(within(t, soon), judged(t, reply)); err != nil {
				t.Error(err)
			}
		}
	})
	if err != nil || !strings.Contains(string(got.Message.Raw), "file:///r") || len(seen) != 2 {
		t.Errorf("it answered %v, %v, after %q", got.Message, err, seen)
	}
	heard, opened := make(chan string, 1), make(chan struct{})
	go func() {
		_ = conn.Listen(within(t, soon), upstream.Listener{Room: upstreamtest.Answers().Open(upstreamtest.Holder(principal.Key{})), Opened: func() { close(opened) }, Event: func(e upstream.Event) error { //nolint:testifylint // Listen ends with the connection
			heard <- string(e.Message)
			return nil
		}})
	}()
	<-opened
	mcp.AddTool(server, &mcp.Tool{Name: "more"}, func(context.Context, *mcp.CallToolRequest, none) (*mcp.CallToolResult, any, error) {
		return nil, nil, nil
	})
	if got := <-heard; !strings.Contains(got, "tools/list_changed") || len(over.ToolsChanged()) == 0 {
		t.Errorf("it answered %s", got)
	}
	if err := conn.Close(within(t, soon)); err != nil {
		t.Error(err)
	}
	if _, err := conn.Request(within(t, soon), message("ping", "9"), nil); !errors.Is(err, upstream.ErrClosed) {
		t.Errorf("once it is closed: %v", err)
	}
}

// Case U1. An answer on the stream is forwarded only to the request with the same id, even if answers arrive late or
// out of order.
func TestLegacy_AnswersReachTheirRequests(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		says []string
		want string // empty if there is no usable answer
	}{
		"the answer":                  {[]string{result}, strings.Replace(result, "ID", `"a"`, 1)},
		"after another's":             {[]string{strings.Replace(result, "ID", "99", 1), result}, strings.Replace(result, "ID", `"a"`, 1)},
		"twice":                       {[]string{result, strings.Replace(result, "9007199254740993", "2", 1)}, strings.Replace(result, "ID", `"a"`, 1)},
		"as only the gateway may":     {[]string{`{"jsonrpc":"2.0","id":ID,"error":{"code":-31403,"message":"x"}}`}, ""},
		"what can't be read":          {[]string{`{"jsonrpc":"2.0"`}, ""},
		"what could be read two ways": {[]string{`{"jsonrpc":"2.0","id":ID,"result":{},"result":{"x":1}}`}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newOlder(t, func(string) []string { return tt.says })
			conn := openHTTP(t, s.URL+"/sse")
			timeout := soon
			if tt.want == "" { // an unreadable message is dropped, so the request waits
				timeout = 200 * time.Millisecond
			}
			got, err := conn.Request(within(t, timeout), message("tools/call", `"a"`), nil)
			switch {
			case tt.want == "":
				if !errors.Is(err, upstream.ErrNoAnswer) && !errors.Is(err, upstream.ErrTimeout) {
					t.Errorf("got %v, %v", got, err)
				}
			case err != nil || string(got.Message.Raw) != tt.want:
				t.Errorf("got %v, %v, want %s", got, err, tt.want)
			}
		})
	}
}

// Messages are posted only to the configured host.
func TestLegacy_EndpointMustBeOnTheSameHost(t *testing.T) {
	t.Parallel()
	stranger := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("a stranger was reached") }))
	defer stranger.Close()
	for _, endpoint := range []string{stranger.URL + "/messages", "//evil.example/messages", "http://user@HOST/messages", "ftp://HOST/messages", ":", strings.Repeat("x", 5000)} {
		s := newOlder(t, func(string) []string { return nil })
		s.place = strings.ReplaceAll(endpoint, "HOST", strings.TrimPrefix(s.URL, "http://"))
		conn, _, err := newHTTP(t, s.URL+"/sse").Open(within(t, soon), principal.Key{}, message("initialize", "0"))
		if err == nil || conn != nil {
			t.Errorf("%s is taken", endpoint)
		}
	}
	s := newOlder(t, func(string) []string { return []string{result} })
	s.place = s.URL + "/messages?session=%2Fx"
	if _, err := openHTTP(t, s.URL+"/sse").Request(within(t, soon), message("ping", "1"), nil); err != nil || !strings.HasPrefix(s.posted(2)[1], "/messages?session=%2Fx ") {
		t.Errorf("its own endpoint: %v, %q", err, s.posted(1))
	}
}

// A stream ends. The requests that wait for an answer on it end with an unknown outcome, and later requests open
// another stream.
func TestLegacy_RequestsEndWithTheStream(t *testing.T) {
	t.Parallel()
	var s *legacyServer
	s = newOlder(t, func(body string) []string {
		if strings.Contains(body, "tools/call") {
			s.hangUp()
			return nil
		}
		return []string{result}
	})
	conn := openHTTP(t, s.URL+"/sse")
	if _, err := conn.Request(within(t, soon), message("tools/call", "1"), nil); !errors.Is(err, upstream.ErrNoAnswer) {
		t.Errorf("what waited: %v", err)
	}
	if _, err := conn.Request(within(t, soon), message("ping", "2"), nil); err != nil {
		t.Errorf("a later request: %v", err)
	}
	posted := s.posted(5)
	if !strings.Contains(posted[0], "initialize") || !strings.Contains(posted[2], "initialize") || !strings.Contains(posted[3], "notifications/initialized") {
		t.Errorf("it got %q", posted)
	}
}

// Case X1. A call ends when its timeout expires. A later answer is dropped, and the session continues.
func TestLegacy_CallEndsWithItsTimeout(t *testing.T) {
	t.Parallel()
	s := newOlder(t, func(body string) []string {
		if strings.Contains(body, "tools/call") {
			return nil
		}
		return []string{strings.Replace(result, "ID", "1", 1), result}
	})
	conn := openHTTP(t, s.URL+"/sse")
	if _, err := conn.Request(within(t, 50*time.Millisecond), message("tools/call", "1"), nil); !errors.Is(err, upstream.ErrTimeout) {
		t.Errorf("it ends with %v", err)
	}
	if got, err := conn.Request(within(t, soon), message("ping", "2"), nil); err != nil || idOf(string(got.Message.Raw)) != "2" {
		t.Errorf("later: %v, %v", got, err)
	}
}

// Case U1. A late answer to an abandoned request is not mistaken for the answer to another request with the same client
// id. A cancellation contains the id that the server has received.
func TestLegacy_LateAnswerReachesNoOtherRequest(t *testing.T) {
	t.Parallel()
	var s *legacyServer
	var calls []string
	s = newOlder(t, func(body string) []string {
		if calls = append(calls, idOf(body)); len(calls) == 1 {
			return nil
		}
		return []string{strings.Replace(strings.Replace(result, "ID", calls[0], 1), "9007199254740993", `"late"`, 1), result}
	})
	conn := openHTTP(t, s.URL+"/sse")
	ctx, cancel := context.WithCancel(within(t, soon))
	done := make(chan error, 1)
	go func() {
		_, err := conn.Request(ctx, message("tools/call", "1"), nil)
		done <- err
	}()
	s.posted(2)
	if err := conn.Notify(within(t, soon), upstream.Cancelled([]byte("1")).Request("", nil)); err != nil || !strings.Contains(s.posted(3)[2], `"requestId":`+idOf(strings.SplitN(s.posted(2)[1], " ", 2)[1])+`}`) {
		t.Errorf("cancelled: %v, %q", err, s.posted(3))
	}
	cancel()
	if err := <-done; !errors.Is(err, upstream.ErrNoAnswer) {
		t.Errorf("what was cancelled: %v", err)
	}
	got, err := conn.Request(within(t, soon), message("tools/call", "1"), nil)
	if err != nil || string(got.Message.Raw) != strings.Replace(result, "ID", "1", 1) {
		t.Errorf("the next one got %v, %v", got.Message, err)
	}
}

// An answer and a server's request are accepted even if they arrive before the POST has ended, or if the POST never
// ends.
func TestLegacy_AnswerMayArriveBeforeThePostEnds(t *testing.T) {
	t.Parallel()
	var s *legacyServer
	hold := make(chan struct{})
	defer close(hold)
	s = newOlder(t, func(body string) []string {
		s.say(roots)
		s.say(strings.Replace(result, "ID", idOf(body), 1))
		<-hold
		return nil
	})
	conn := openHTTP(t, s.URL+"/sse")
	var seen []string
	if _, err := conn.Request(within(t, soon), message("tools/call", "1"), func(m []byte) { seen = append(seen, string(m)) }); err != nil || len(seen) != 1 {
		t.Errorf("got %v, after %q", err, seen)
	}
}

// Case X3. Clients do not read. The messages for them are charged to the principal's memory budget, and are dropped
// when the budget is exhausted.
func TestLegacy_WaitingMessagesAreLimited(t *testing.T) {
	t.Parallel()
	const size, each, requests, patience = 200 << 10, 24, 5, time.Minute // 72 MB in total
	all, key := upstreamtest.Answers(), principal.Key{Tenant: "t", Subject: "s"}
	var done sync.WaitGroup
	var took atomic.Int64
	release := make(chan struct{})
	free := sync.OnceFunc(func() { close(release) })
	defer free()  // the server waits until its requests end
	for range 3 { // one server may not send more in a minute
		var s *legacyServer
		s = newOlder(t, func(body string) []string {
			for range each {
				s.say(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":` + idOf(body) + `,"progress":1,"x":"` + strings.Repeat("x", size) + `"}}`)
			}
			return []string{result}
		})
		hello := message("initialize", "0")
		hello.Room = all.Open(upstreamtest.Holder(key))
		defer hello.Room.Close()
		conn, _, err := newHTTP(t, s.URL+"/sse").Open(within(t, patience), key, hello)
		if err != nil {
			t.Fatal(err)
		}
		for i := range requests {
			done.Go(func() {
				req := withProgress(message("tools/call", strconv.Itoa(i)), "1")
				req.Room = all.Open(upstreamtest.Holder(key))
				defer req.Room.Close()
				if _, err := conn.Request(within(t, patience), req, func([]byte) {
					<-release
					took.Add(size)
				}); err != nil {
					t.Error(err)
				}
			})
		}
	}
	probe := all.Open(upstreamtest.Holder(key))
	defer probe.Close()
	eventually.Within(t, patience, "the memory budget is used up", func() bool {
		defer probe.Settle(0)
		return !probe.Add(limits.PrincipalBytes / 2)
	})
	free()
	done.Wait()
	if took.Load() == 0 || !probe.Add(limits.PrincipalBytes/2) {
		t.Error("messages that were read still count in the memory budget")
	}
}

// A server answers with a temporary error. The gateway must not conclude that the server does not support HTTP+SSE, and
// retries immediately.
func TestLegacy_TemporaryErrorIsRetried(t *testing.T) {
	t.Parallel()
	s := newOlder(t, func(string) []string { return []string{result} })
	away := true
	door := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if away && r.Method == http.MethodGet {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		s.Config.Handler.ServeHTTP(w, r)
	}))
	defer door.Close()
	over := newHTTP(t, door.URL+"/sse")
	if conn, _, err := over.Open(within(t, soon), principal.Key{}, message("initialize", "0")); err == nil || conn != nil {
		t.Fatal("a server that is away opens a session")
	}
	away = false
	conn, _, err := over.Open(within(t, soon), principal.Key{}, message("initialize", "0"))
	if err != nil {
		t.Fatalf("once it is back: %v", err)
	}
	if err := conn.Close(within(t, soon)); err != nil {
		t.Error(err)
	}
	if err := over.Close(); err != nil {
		t.Error(err)
	}
}
