package streamable_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream/streamable"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream/upstreamtest"
	"github.com/sluice-mesh/sluice/services/internal/principal"
)

// soon is much shorter than the timeout of a call in these tests, and much longer than the duration of a call.
const soon = 5 * time.Second

type webPost struct {
	method, id, session, version string
	header                       http.Header
	body                         []byte
}

type webReply func(w http.ResponseWriter, r *http.Request, p webPost)

// web is a Streamable HTTP server with answers that the test sets.
type web struct {
	*httptest.Server

	mu          sync.Mutex
	posts       []webPost
	deletes     []string
	connections atomic.Int64
	replies     map[string]webReply
}

func newWeb(t *testing.T) *web {
	t.Helper()
	s := &web{replies: map[string]webReply{"initialize": greet("first", "2025-11-25")}}
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(s.serve))
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			s.connections.Add(1)
		}
	}
	s.Start()
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	return s
}

func (s *web) on(method string, reply webReply) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.replies[method] = reply
}

func (s *web) got(method string) []webPost {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []webPost
	for _, p := range s.posts {
		if method == "" || p.method == method {
			out = append(out, p)
		}
	}
	return out
}

func (s *web) ended() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.deletes...)
}

func (s *web) serve(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodDelete {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.deletes = append(s.deletes, r.Header.Get("Mcp-Session-Id"))
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	var m struct {
		ID     json.RawMessage `json:"id"`
		Method string          `json:"method"`
	}
	_ = json.Unmarshal(body, &m)
	p := webPost{
		method: m.Method, id: string(m.ID), body: body, header: r.Header.Clone(),
		session: r.Header.Get("Mcp-Session-Id"), version: r.Header.Get("Mcp-Protocol-Version"),
	}
	s.mu.Lock()
	s.posts = append(s.posts, p)
	reply := s.replies[m.Method]
	s.mu.Unlock()
	switch {
	case reply != nil:
		reply(w, r, p)
	case m.ID == nil:
		w.WriteHeader(http.StatusAccepted)
	default:
		plain(http.StatusOK, "application/json", `{"jsonrpc":"2.0","id":ID,"result":{}}`)(w, r, p)
	}
}

func greet(session, version string) webReply {
	return func(w http.ResponseWriter, r *http.Request, p webPost) {
		if session != "" {
			w.Header()["Mcp-Session-Id"] = []string{session}
		}
		plain(http.StatusOK, "application/json", `{"jsonrpc":"2.0","id":ID,"result":{"protocolVersion":"`+version+`","capabilities":{}}}`)(w, r, p)
	}
}

// plain returns a reply with the given body, in which the string ID is replaced with the request's id.
func plain(status int, kind, body string) webReply {
	return func(w http.ResponseWriter, _ *http.Request, p webPost) {
		w.Header().Set("Content-Type", kind)
		w.WriteHeader(status)
		fmt.Fprint(w, strings.ReplaceAll(body, "ID", p.id))
	}
}

// events returns a reply with an event stream that consists of the given bytes.
func events(stream string) webReply { return plain(http.StatusOK, "text/event-stream", stream) }

// hanging returns a reply that writes another reply's response and then keeps it open until the client disconnects.
func hanging(reply webReply) webReply {
	return func(w http.ResponseWriter, r *http.Request, p webPost) {
		reply(w, r, p)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}
}

// inTurn returns a reply that uses each of the given replies once, in order, and then repeats the last one.
func inTurn(replies ...webReply) webReply {
	var mu sync.Mutex
	n := 0
	return func(w http.ResponseWriter, r *http.Request, p webPost) {
		mu.Lock()
		reply := replies[min(n, len(replies)-1)]
		n++
		mu.Unlock()
		reply(w, r, p)
	}
}

func newHTTP(t *testing.T, url string) *streamable.Transport {
	t.Helper()
	s, err := streamable.New(streamable.Config{Name: "web", URL: url, Headers: map[string]string{"Authorization": "Bearer ours"}}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// message returns a request as the pipeline creates it. If id is empty, it returns a notification.
func message(method, id string) upstream.Request {
	body := `{"jsonrpc":"2.0","id":` + id + `,"method":"` + method + `"}`
	if id == "" {
		body = `{"jsonrpc":"2.0","method":"` + method + `"}`
	}
	m := &jsonrpc.Message{Raw: []byte(body), Kind: jsonrpc.Notification, Method: method}
	if id != "" {
		start := len(`{"jsonrpc":"2.0","id":`)
		m.Kind, m.ID = jsonrpc.Request, jsonrpc.Span{Start: start, End: start + len(id)}
	}
	return upstream.Request{Message: m}
}

func spanOf(body, part string) jsonrpc.Span {
	start := strings.Index(body, part)
	return jsonrpc.Span{Start: start, End: start + len(part)}
}

func withProgress(r upstream.Request, token string) upstream.Request {
	m := *r.Message
	m.Raw = []byte(strings.TrimSuffix(string(m.Raw), "}") + `,"params":{"_meta":{"progressToken":` + token + `}}}`)
	m.Meta.ProgressToken = spanOf(string(m.Raw), token+`}}}`)
	m.Meta.ProgressToken.End -= len(`}}}`)
	return upstream.Request{Message: &m}
}

// sizes contains a message size for each of the client's two ways of sending a request.
var sizes = map[string]int{"small": 0, "large": 100 << 10}

func padded(r upstream.Request, blanks int) upstream.Request {
	m := *r.Message
	m.Raw = append(slices.Clip(m.Raw), bytes.Repeat([]byte(" "), blanks)...)
	return upstream.Request{Message: &m}
}

func openHTTP(t *testing.T, url string) upstream.Conn {
	t.Helper()
	return openOver(t, newHTTP(t, url))
}

func openOver(t *testing.T, over upstream.Transport) upstream.Conn {
	t.Helper()
	conn, _, err := upstreamtest.Roomy{Transport: over, All: upstreamtest.Answers()}.Open(within(t, soon), principal.Key{Tenant: "t", Subject: "s"}, message("initialize", "0"))
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}
