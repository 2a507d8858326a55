package streamable_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-mesh/sluice/services/gateway/internal/limits"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream/streamable"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream/upstreamtest"
	"github.com/sluice-mesh/sluice/services/internal/principal"
)

// streamServer is a server that supports a stream for messages that belong to no request.
type streamServer struct {
	*httptest.Server

	mu    sync.Mutex
	gets  []http.Header
	posts []string
}

func newStation(t *testing.T, answer func(w http.ResponseWriter)) *streamServer {
	t.Helper()
	s := new(streamServer)
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			s.mu.Lock()
			s.gets = append(s.gets, r.Header)
			s.mu.Unlock()
			answer(w)
			return
		}
		body, _ := io.ReadAll(r.Body)
		s.mu.Lock()
		s.posts = append(s.posts, string(body))
		s.mu.Unlock()
		if !strings.Contains(string(body), "initialize") {
			w.WriteHeader(http.StatusAccepted)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Mcp-Session-Id", "s1")
		_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":0,"result":`+greeting+`}`)
	}))
	t.Cleanup(s.Close)
	return s
}

// listen opens a session with the server and listens until the stream ends.
func (s *streamServer) listen(t *testing.T, after string, secrets ...string) (heard []upstream.Event, opened bool, err error) {
	t.Helper()
	over, err := streamable.New(streamable.Config{Name: "web", URL: s.URL, Secrets: secrets}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = over.Close() })
	all := upstreamtest.Answers()
	conn, _, err := upstreamtest.Roomy{Transport: over, All: all}.Open(within(t, soon), principal.Key{Tenant: "t", Subject: "ana"}, message("initialize", "0"))
	if err != nil {
		t.Fatal(err)
	}
	memory := all.Open(&limits.Owner{Server: "web"})
	defer memory.Close()
	err = conn.Listen(within(t, soon), upstream.Listener{
		After: after, Room: memory, Opened: func() { opened = true },
		Event: func(e upstream.Event) error {
			e.Message = append([]byte(nil), e.Message...)
			heard = append(heard, e)
			if string(e.Message) == stop {
				return errStop
			}
			return nil
		},
	})
	return heard, opened, err
}

const stop = `{"jsonrpc":"2.0","method":"notifications/stop"}`

var errStop = errors.New("enough was heard")

func streaming(text string) func(http.ResponseWriter) {
	return func(w http.ResponseWriter) {
		w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		_, _ = io.WriteString(w, text)
	}
}

// Messages on the stream arrive unchanged, with the event ids after which the stream can be resumed.
func TestListen_MessagesArriveUnchanged(t *testing.T) {
	t.Parallel()
	updated := `{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"a:b","n":9007199254740993}}`
	s := newStation(t, streaming("id: 0\nretry: 250\ndata:\n\n: alive\n\nevent: ping\nid: p\ndata: x\n\nid: 1\ndata: "+updated+"\n\n"+
		"id: \x00\ndata: "+roots+"\n\nretry: soon\nid: bé\n\n"+
		"data: {\"jsonrpc\":\"2.0\",\"id\":3,\"method\":\"ping\"}\n\ndata: {\"jsonrpc\":\"2.0\",\"id\":4,\"result\":{}}\n\n"))
	got, opened, err := s.listen(t, "before")
	want := []upstream.Event{{ID: "0", Retry: "500"}, {ID: "p"}, {ID: "1", Message: []byte(updated)}, {Message: []byte(roots)}}
	if diff := cmp.Diff(want, got); diff != "" || !opened || err == nil {
		t.Errorf("%v, %t, got (-want +got):\n%s", err, opened, diff)
	}
	head := s.gets[0]
	if head.Get("Last-Event-ID") != "before" || head.Get("Mcp-Session-Id") != "s1" || head.Get("Mcp-Protocol-Version") != "2025-11-25" || head.Get("Accept") != "text/event-stream" {
		t.Errorf("it asked with %v", head)
	}
	if last := s.posts[len(s.posts)-1]; last != `{"jsonrpc":"2.0","id":3,"result":{}}` {
		t.Errorf("the ping was answered %s", last)
	}
}

// Case S1. Neither events nor their ids contain a configured secret.
func TestListen_EventsContainNoSecrets(t *testing.T) {
	t.Parallel()
	const secret = "ours-and-nobody-else's"
	s := newStation(t, streaming("id: x-"+secret+"\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\"params\":{\"data\":\""+secret+"\"}}\n\n"))
	got, _, _ := s.listen(t, "", secret)
	if len(got) != 1 || got[0].ID != "" || string(got[0].Message) != `{"jsonrpc":"2.0","method":"notifications/message","params":{"data":"[redacted]"}}` {
		t.Errorf("got %q", got)
	}
}

// A server without a stream is distinguished from a server that is temporarily unavailable. In both cases, no session
// is opened.
func TestListen_ReportsServerWithoutStream(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		answer func(http.ResponseWriter)
		want   error
		gets   int
	}{
		"405":          {func(w http.ResponseWriter) { w.WriteHeader(http.StatusMethodNotAllowed) }, upstream.ErrNoStream, 1},
		"404":          {func(w http.ResponseWriter) { w.WriteHeader(http.StatusNotFound) }, upstream.ErrNoStream, 1},
		"400":          {func(w http.ResponseWriter) { w.WriteHeader(http.StatusBadRequest) }, upstream.ErrNoStream, 1},
		"403":          {func(w http.ResponseWriter) { w.WriteHeader(http.StatusForbidden) }, upstream.ErrNoAnswer, 1},
		"503":          {func(w http.ResponseWriter) { w.WriteHeader(http.StatusServiceUnavailable) }, upstream.ErrNoAnswer, 1},
		"another type": {func(w http.ResponseWriter) { w.Header().Set("Content-Type", "application/json") }, upstream.ErrNoStream, 1},
		"a redirect":   {func(w http.ResponseWriter) { w.Header().Set("Location", "/"); w.WriteHeader(http.StatusFound) }, upstream.ErrNoStream, 1},
		"an event stream with another status": {func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "text/event-stream")
			w.WriteHeader(http.StatusCreated)
		}, upstream.ErrNoStream, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStation(t, tt.answer)
			got, opened, err := s.listen(t, "x")
			if !errors.Is(err, tt.want) || opened || len(got) != 0 || len(s.gets) != tt.gets {
				t.Errorf("%v, %t, got %q, asked %d times", err, opened, got, len(s.gets))
			}
			if opened := strings.Count(strings.Join(s.posts, "\n"), "initialize\""); opened != 1 {
				t.Errorf("%d sessions were opened", opened)
			}
		})
	}
}

// The server opens a stream and later loses the session. The gateway then listens in a new session.
func TestListen_OpensANewSessionWhenForgotten(t *testing.T) {
	t.Parallel()
	asked := 0
	s := newStation(t, func(w http.ResponseWriter) {
		if asked++; asked == 2 {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		streaming("id: 1\ndata: " + stop + "\n\n")(w)
	})
	conn := openHTTP(t, s.URL)
	for range 2 {
		err := conn.Listen(within(t, soon), upstream.Listener{Opened: func() {}, Event: func(upstream.Event) error { return errStop }, After: "x"})
		if !errors.Is(err, errStop) {
			t.Fatal(err)
		}
	}
	if len(s.gets) != 3 || s.gets[1].Get("Last-Event-ID") != "x" || s.gets[2].Get("Last-Event-ID") != "" {
		t.Errorf("it listened with %v", s.gets)
	}
	if opened := strings.Count(strings.Join(s.posts, "\n"), "initialize\""); opened != 2 {
		t.Errorf("%d sessions were opened", opened)
	}
}

// Case U1. A stream ends if a message is invalid, if its listener stops, or if the server exceeds a limit.
func TestListen_EndsWhenAMessageBreaksTheRules(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		text string
		want int
	}{
		"a duplicate key":      {"data: {\"jsonrpc\":\"2.0\",\"method\":\"a\",\"method\":\"b\"}\n\ndata: " + roots + "\n\n", 0},
		"the listener stops":   {"data: " + stop + "\n\ndata: " + roots + "\n\n", 1},
		"too large an event":   {"data: " + strings.Repeat("x", upstream.MaxMessage+1) + "\n\ndata: " + roots + "\n\n", 0},
		"too many of them":     {strings.Repeat(":\n\n", upstream.MaxEvents+1) + "data: " + roots + "\n\n", 0},
		"too many bytes of it": {strings.Repeat(":"+strings.Repeat("x", 1<<20)+"\n\n", 65) + "data: " + roots + "\n\n", 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, opened, err := newStation(t, streaming(tt.text)).listen(t, "")
			if err == nil || !opened || len(got) != tt.want {
				t.Errorf("%v, %t, got %d", err, opened, len(got))
			}
		})
	}
}

func TestListen_StoppingEndsTheConnection(t *testing.T) {
	t.Parallel()
	disconnected := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":0,"result":%s}`, greeting)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
		close(disconnected)
	}))
	t.Cleanup(s.Close)
	conn := openHTTP(t, s.URL)
	ctx, cancel := context.WithCancel(within(t, soon))
	err := conn.Listen(ctx, upstream.Listener{Opened: cancel, Event: func(upstream.Event) error { return nil }})
	if err == nil {
		t.Error("it ended without a reason")
	}
	<-disconnected
}

// The server ends a stream before the answer, and the gateway resumes it after its last event. Without an event id, or
// without further events, the request gets no answer. The request itself is sent only once.
func TestRequest_ResumesTheStreamOfAnAnswer(t *testing.T) {
	t.Parallel()
	answer := "data: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"ran\":1}}\n\n"
	for name, tt := range map[string]struct {
		post  string
		gets  map[string]string // by the last event id
		after []string
		err   error
	}{
		"twice": {
			"id: a\nretry: 1\ndata: \n\n", map[string]string{"a": "id: b\ndata: " + progress + "\n\ndata: {\"jsonrpc\":\"2.0\",\"id\":1,\"res", "b": answer},
			[]string{"a", "b"}, nil,
		},
		"after a truncated event":          {"id: a\ndata:\n\nid: c\ndata: {\"jso", map[string]string{"a": answer}, []string{"a"}, nil},
		"no event had an id":               {"retry: 1\ndata: \n\n", nil, nil, upstream.ErrNoAnswer},
		"an id that no head can have":      {"id: a b\ndata: \n\n", nil, nil, upstream.ErrNoAnswer},
		"there is no stream to go on with": {"id: a\ndata: \n\n", nil, []string{"a"}, upstream.ErrNoAnswer},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var mu sync.Mutex
			var after []string
			posts := 0
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				mu.Lock()
				defer mu.Unlock()
				if r.Method == http.MethodGet {
					last := r.Header.Get("Last-Event-ID")
					if after = append(after, last); tt.gets[last] == "" {
						w.WriteHeader(http.StatusMethodNotAllowed)
						return
					}
					streaming(tt.gets[last])(w)
					return
				}
				body, _ := io.ReadAll(r.Body)
				if strings.Contains(string(body), "initialize") {
					w.Header().Set("Content-Type", "application/json")
					fmt.Fprintf(w, `{"jsonrpc":"2.0","id":0,"result":%s}`, greeting)
					return
				}
				posts++
				streaming(tt.post)(w)
			}))
			t.Cleanup(s.Close)
			seen := 0
			got, err := openHTTP(t, s.URL).Request(within(t, soon), withProgress(message("tools/call", "1"), "1"), func([]byte) { seen++ })
			if !errors.Is(err, tt.err) || err == nil && (!strings.Contains(string(got.Message.Raw), `"ran":1`) || seen != strings.Count(tt.gets["a"], progress)) {
				t.Errorf("%v, %d events", err, seen)
			}
			mu.Lock()
			defer mu.Unlock()
			if diff := cmp.Diff(tt.after, after); diff != "" || posts != 1 {
				t.Errorf("%d requests; asked behind (-want +got):\n%s", posts, diff)
			}
		})
	}
}
