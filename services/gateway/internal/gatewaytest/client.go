package gatewaytest

import (
	"bytes"
	"context"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/dispatch"
	"github.com/sluice-mesh/sluice/services/gateway/internal/httpserver"
	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/protocol"
	v2025 "github.com/sluice-mesh/sluice/services/gateway/internal/protocol/v2025"
	"github.com/sluice-mesh/sluice/services/gateway/internal/sse"
	"github.com/sluice-mesh/sluice/services/internal/authn"
)

// Tenant is the tenant of all callers in tests.
const Tenant = "acme"

// Caller returns an authenticated caller with this subject.
func Caller(subject string) httpserver.Caller {
	return httpserver.Caller{
		Principal:  &identityv1.Principal{Tenant: Tenant, Subject: subject, Agent: "dev", Role: authv1.TokenRole_TOKEN_ROLE_AGENT},
		Credential: authn.InProcess{},
	}
}

// Message is a message that a caller sends to the gateway.
type Message struct {
	// Caller is the caller that sends the message. The zero value stands for the caller ana.
	Caller httpserver.Caller
	// Server is the server in the URL, or empty for the URL for all servers.
	Server string
	// Header contains further headers. They are added to the headers of a client that accepts JSON and event streams,
	// and replace headers with the same name.
	Header http.Header
	Body   string
	// Hold is how long the gateway holds a call from a caller inside the gateway.
	Hold *time.Duration
}

// With returns a copy of the message with an additional header.
func (m Message) With(name string, values ...string) Message {
	m.Header = maps.Clone(m.Header)
	if m.Header == nil {
		m.Header = make(http.Header)
	}
	m.Header[http.CanonicalHeaderKey(name)] = values
	return m
}

// From returns a copy of the message that comes from another caller.
func (m Message) From(subject string) Message {
	m.Caller = Caller(subject)
	return m
}

// To returns a copy of the message that is addressed to another server.
func (m Message) To(server string) Message {
	m.Server = server
	return m
}

// Replace returns a copy of the message with strings replaced in the body, as [strings.NewReplacer] does.
func (m Message) Replace(oldnew ...string) Message {
	m.Body = strings.NewReplacer(oldnew...).Replace(m.Body)
	return m
}

// Reply is the answer to a message, in the form that an HTTP client receives.
type Reply struct {
	Status int
	Header http.Header
	// Text is the JSON-RPC response, or empty if there is no response.
	Text string
	// Events are the messages that the client has received before the response.
	Events []string
	// Response is what the gateway's handler returned. Its body must not be used.
	Response dispatch.Response
}

// Code returns the decision code in the reply, or "" if there is none.
func (r Reply) Code() string { return CodeOf(r.Text) }

// CodeOf returns the decision code in a JSON-RPC response, or "" if there is none.
func CodeOf(response string) string {
	type decision struct {
		Code string `json:"code"`
	}
	var m struct {
		Result struct {
			Meta map[string]decision `json:"_meta"`
		} `json:"result"`
		Error struct {
			Data decision `json:"data"`
		} `json:"error"`
	}
	_ = json.Unmarshal([]byte(response), &m) // other answers have no code
	if m.Error.Data.Code != "" {
		return m.Error.Data.Code
	}
	return m.Result.Meta["dev.sluice/decision"].Code
}

// Request returns a protocol request for the message. The body has not been read yet. The sink receives the messages
// that precede the response.
func (g *Gateway) Request(ctx context.Context, m Message, sink dispatch.Sink) *protocol.Request {
	if m.Caller.Principal == nil {
		m.Caller = Caller("ana")
	}
	x := g.MCP.NewRequest(ctx, m.Caller, m.Server, header(m), sink)
	x.Cleanup = &x.OwnCleanup
	x.Hold = m.Hold
	return x
}

func header(m Message) http.Header {
	h := http.Header{"Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"}}
	maps.Copy(h, m.Header)
	return h
}

// Do sends a message as an HTTP client does, and returns the reply.
func (g *Gateway) Do(m Message) Reply {
	g.t.Helper()
	w := httptest.NewRecorder()
	resp := g.serve(g.t.Context(), m, w)
	return read(w, resp)
}

// serve handles a message from an HTTP client.
func (g *Gateway) serve(ctx context.Context, m Message, w http.ResponseWriter) (resp dispatch.Response) {
	to := sse.NewWriter(w, header(m))
	x := g.Request(ctx, m, to)
	defer func() { x.End(resp) }()
	resp = x.Serve(strings.NewReader(m.Body), int64(len(m.Body)))
	to.Answer(resp)
	return resp
}

// Inside sends a message as a service inside the gateway does. The function receives the messages that precede the
// response. If it is nil, the service accepts no such messages.
func (g *Gateway) Inside(m Message, event func(message []byte)) protocol.InternalResponse {
	g.t.Helper()
	return g.Request(g.t.Context(), m, dispatch.NewCallback(event)).Do([]byte(m.Body))
}

// read returns the reply in the form that a client receives.
func read(w *httptest.ResponseRecorder, resp dispatch.Response) Reply {
	out := Reply{Status: w.Code, Header: w.Header(), Text: w.Body.String(), Response: resp}
	if w.Header().Get("Content-Type") != "text/event-stream" {
		return out
	}
	for line := range strings.Lines(out.Text) {
		if data, ok := strings.CutPrefix(line, "data: {"); ok {
			out.Events = append(out.Events, "{"+strings.TrimSuffix(data, "\n"))
		}
	}
	out.Text = ""
	if n := len(out.Events); n > 0 && resp.Body != nil {
		out.Events, out.Text = out.Events[:n-1], out.Events[n-1]
	}
	return out
}

// Stream is a stream of messages that a client receives.
type Stream struct {
	messages chan string
	hangUp   context.CancelFunc
	ended    chan struct{}
	reply    Reply
	exists   bool

	mu     sync.Mutex
	text   bytes.Buffer
	header http.Header
	status int
}

// Next waits for the next message and returns it. At the end of the stream, it returns "".
func (s *Stream) Next() string { return <-s.messages }

// HangUp disconnects the client from the gateway.
func (s *Stream) HangUp() { s.hangUp() }

// End waits until the gateway has handled the message, and returns the reply. exists is true if the gateway has opened
// a stream.
func (s *Stream) End() (reply Reply, exists bool) {
	<-s.ended
	return s.reply, s.exists
}

// Ended reports whether the gateway has handled the message.
func (s *Stream) Ended() bool {
	select {
	case <-s.ended:
		return true
	default:
		return false
	}
}

// Lines returns the lines of the stream that have arrived so far.
func (s *Stream) Lines() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Split(strings.TrimSuffix(s.text.String(), "\n"), "\n")
}

// Header implements http.ResponseWriter.
func (s *Stream) Header() http.Header { return s.header }

// WriteHeader implements http.ResponseWriter.
func (s *Stream) WriteHeader(status int) { s.status = status }

// Write implements http.ResponseWriter. It passes each complete message to Next.
func (s *Stream) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, line := range strings.SplitAfter(string(p), "\n") {
		s.text.WriteString(line)
		if !strings.HasSuffix(line, "\n") {
			continue
		}
		whole := strings.TrimSuffix(s.text.String(), "\n")
		if data, ok := strings.CutPrefix(whole[strings.LastIndexByte(whole, '\n')+1:], "data: {"); ok {
			s.messages <- "{" + data
		}
	}
	return len(p), nil
}

// Flush implements http.Flusher.
func (*Stream) Flush() {}

// Stream sends a message as an HTTP client that reads the reply while the gateway is still handling the message.
func (g *Gateway) Stream(m Message) *Stream {
	return g.stream(func(ctx context.Context, s *Stream) (dispatch.Response, bool) { return g.serve(ctx, m, s), true })
}

// Listen opens a session's stream as an HTTP client does, with the given HTTP method.
func (g *Gateway) Listen(m Message, method string) *Stream {
	return g.stream(func(ctx context.Context, s *Stream) (resp dispatch.Response, exists bool) {
		to := sse.NewWriter(s, header(m))
		x := g.Request(ctx, m, to)
		x.Message, x.Received = new(jsonrpc.Message), time.Now()
		handler := v2025.New(x)
		x.SetProtocol(handler)
		defer func() { x.End(resp) }()
		if resp, exists = handler.Listen(method); exists {
			to.Answer(resp)
		}
		return resp, exists
	})
}

func (g *Gateway) stream(handle func(ctx context.Context, s *Stream) (dispatch.Response, bool)) *Stream {
	ctx, cancel := context.WithCancel(g.t.Context())
	s := &Stream{messages: make(chan string, 1000), hangUp: cancel, ended: make(chan struct{}), header: make(http.Header)}
	go func() {
		defer close(s.ended)
		defer close(s.messages)
		var resp dispatch.Response
		resp, s.exists = handle(ctx, s)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.reply = Reply{Status: s.status, Header: s.header, Text: s.text.String(), Response: resp}
	}()
	return s
}
