// Package upstream connects the gateway to MCP servers. It is the only way to them: the gateway sends every message
// through a [Session] of a [Server]. A message that a client wrote is sent only as the request that was judged, or as
// the reply to a server's request that was judged; the gateway writes every other message itself. A [Transport] reopens
// sessions that its server has forgotten, checks what the server sends, and decides nothing.
package upstream

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/gate"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/room"
	"github.com/sluice-mesh/sluice/services/internal/principal"
)

// Errors of a [Session]. They say what is known about a request that has no usable answer. Compare with errors.Is.
var (
	// ErrNeverSent means that the request provably never left the gateway, or was rejected before the server read it.
	ErrNeverSent = errors.New("the request never reached the server")
	// ErrTimeout means that the request was sent and no answer came in time.
	ErrTimeout = errors.New("the server did not answer in time")
	// ErrNoAnswer means that the request was sent and no usable answer came back.
	ErrNoAnswer = errors.New("the server gave no usable answer")
)

const (
	// MaxMessage is the largest message that the gateway accepts from a server, in bytes.
	MaxMessage = 16 << 20
	// MaxEvents is the largest number of messages that a server may send before the answer to one request. All of them
	// are read and count, even those that no client receives.
	MaxEvents = 100_000
	// MaxStream is the largest size of those messages and the answer together, in bytes.
	MaxStream = 64 << 20
)

// Errors for requests that the gateway or the client ended early. They say nothing about the server. Other errors wrap
// them; compare with errors.Is.
var (
	// ErrClosed means that the session was closed.
	ErrClosed = errors.New("the session was closed")
	// ErrCancelled means that the client cancelled the request.
	ErrCancelled = errors.New("the client cancelled the request")
	// ErrShutdown means that the gateway is shutting down.
	ErrShutdown = errors.New("the gateway shuts down")
)

// ErrNoStream means that a server sends no messages outside of requests. Compare with errors.Is.
var ErrNoStream = errors.New("the server has no stream")

// ErrLeft means that a server ended the stream of its answer before the answer, without an event id with which the
// stream could be resumed. Compare with errors.Is.
var ErrLeft = errors.New("the server ended the stream of its answer, which can't be resumed without an event id")

// ErrSessionLost means that a server no longer knows a session, although it did not answer 404. The request that got
// this error may have run. The session can't be used any more. Compare with errors.Is.
var ErrSessionLost = errors.New("the server no longer knows the session")

// ErrOneSession means that a server refuses a session because it accepts only one in all, and the gateway has used that
// one to list the server's tools. A client can't get that session, because that would mix principals. Compare with
// errors.Is.
var ErrOneSession = errors.New("the server takes one session in all, and the gateway has used it to list the server's tools; " +
	"configure the server to make a transport for each session, or to have no sessions")

// ErrRevision means that a server does not speak the protocol revision of the first request. Compare with errors.Is.
var ErrRevision = errors.New("the server does not speak this revision of MCP")

// NotCarried is the error text that a server receives when no client can get its request.
const NotCarried = "No client takes this request here."

// A Transport carries messages to one server and back. Only a [Server] uses it. Implementations are safe for concurrent
// use.
type Transport interface {
	// Open opens a session for a principal. It sends hello, a whole JSON-RPC request, and returns the connection and
	// the answer. The hello is initialize, or server/discover for a connection without sessions; then the error wraps
	// [ErrRevision] if the server answers that it needs a session. Sessions of two principals never share state that
	// the server keeps for one of them.
	Open(ctx context.Context, who principal.Key, hello Request) (Conn, Answer, error)
	// Kind returns `http`, `stdio` or `grpc`.
	Kind() string
	// ToolsChanged returns a channel that receives a value after the server has reported that its list of tools
	// changed. It is nil if the transport can't receive such reports.
	ToolsChanged() <-chan struct{}
	// Close closes every connection and waits for everything that the transport started.
	Close() error
}

// A Starter is a [Transport] that starts programs.
type Starter interface {
	// StartingSince returns when the oldest start that is still under way began, for any principal. It is zero if no
	// start is under way.
	StartingSince() time.Time
	// Notice returns what an operator should know about the program although calls still work. It is empty if there is
	// nothing to report.
	Notice() string
}

// A Conn is one session over a [Transport]. Only a [Session] uses it. It is safe for concurrent use.
type Conn interface {
	// Request sends a request and returns the answer. Until the answer arrives, it passes the server's messages to
	// events, in order: notifications that belong to the request, and requests of the server, each of which the caller
	// has to have answered. Request answers pings itself. If events is nil, notifications are dropped and the server's
	// requests are refused. Errors wrap [ErrNeverSent], [ErrTimeout] or [ErrNoAnswer].
	Request(ctx context.Context, req Request, events func(message []byte)) (Answer, error)
	// Notify sends a notification, or the answer to a request of the server. Errors are those of Request.
	Notify(ctx context.Context, req Request) error
	// Listen passes on what the server sends outside of requests. It returns when ctx ends, the server ends its stream,
	// or the listener returns an error. Pings are answered here, and answers are dropped. Errors wrap [ErrNoStream] if
	// the server has no such stream.
	Listen(ctx context.Context, to Listener) error
	// Close ends the session with the server and all requests in flight.
	Close(ctx context.Context) error
}

// A Listener receives what a server sends outside of requests. Its functions are required.
type Listener struct {
	// After is the id of the last event that was received; empty if there was none.
	After string
	// Room is the memory budget of the message that is being received.
	Room *room.Holding
	// Opened is called once it is known that the server has a stream.
	Opened func()
	// Event receives one event. An error ends the stream.
	Event func(Event) error
}

// An Event is one event of a server's stream (HTML Standard, section 9.2.6).
type Event struct {
	// ID names the event, so that a client that lost the stream can resume after it. It may be empty.
	ID string
	// Retry is how long to wait before resuming, in milliseconds, as a decimal number. It may be empty.
	Retry string
	// Message is a notification or a request, valid until the next event. It is nil if the event has none.
	Message []byte
}

// Request is one JSON-RPC message to a server.
type Request struct {
	// Message is sent byte for byte: a client's message that was judged, or one of the gateway's own. It is not
	// modified.
	Message *gate.Message
	// TraceParent is the W3C traceparent for the server. It may be empty.
	TraceParent string
	// Once means that the request is never sent a second time, even if the server reports that it has forgotten the
	// session.
	Once bool
	// Mirrored are the headers that repeat arguments, for connections without sessions.
	Mirrored []Header
	// May decides whether the client may be sent a server's request, given the raw request and its id, when the gateway
	// returns that request inside an answer. It returns nil to allow it; otherwise the server gets the returned answer.
	// A nil May refuses all.
	May func(ctx context.Context, id, raw []byte) *Own
	// Leave ends the wait for the answer, with the given cause. It is nil if no code ends the wait. It may be called at
	// any time, also after the answer.
	Leave context.CancelCauseFunc
	// Room is the memory budget for the answer, which is reserved before the answer is read. It belongs to one request
	// at a time. The code that made it closes it when the answer is no longer read. If Room is nil, only small answers
	// are accepted, and no messages before them.
	Room *room.Holding
}

// A Header is an HTTP header field of a request: its full name, and its value before encoding.
type Header struct{ Name, Value string }

// Body returns the whole message.
func (r Request) Body() []byte { return r.Message.Raw }

// ID returns the raw JSON of the request's id; nil for a notification.
func (r Request) ID() []byte { return r.Message.ID.Of(r.Message.Raw) }

// Method returns the method of the message.
func (r Request) Method() string { return r.Message.Method }

// ProgressToken returns the raw JSON of the request's progress token; nil if it has none.
func (r Request) ProgressToken() []byte { return r.Message.Meta.ProgressToken.Of(r.Message.Raw) }

// Kind returns the kind of the message; [gate.Invalid] if there is no message.
func (r Request) Kind() gate.Kind {
	if r.Message == nil {
		return gate.Invalid
	}
	return r.Message.Kind
}

// Refuses reports whether an answer says that the server does not know what it was asked, judged by its status and its
// error code. Answers about authentication, load or an internal fault don't count.
func (a Answer) Refuses() bool {
	status := slices.Contains([]int{
		http.StatusBadRequest, http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotAcceptable,
		http.StatusUnsupportedMediaType, http.StatusUnprocessableEntity, http.StatusNotImplemented,
	}, a.Status)
	if a.Message == nil {
		return status
	}
	return a.Message.Error.Present() && !HasCode(a.Message, mcp.CodeInternal) && (status || a.Status < http.StatusMultipleChoices)
}

// Answer is a server's answer to a request.
type Answer struct {
	// Message is the whole JSON-RPC response as the gate read it, with the id of the request.
	Message *gate.Answer
	// Status is the HTTP status; 0 if the transport has none.
	Status int
}
