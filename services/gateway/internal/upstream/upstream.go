// Package upstream is the only way to the MCP servers behind the gateway: whatever the
// gateway has for one goes through a [Session] of its [Server]. What a client wrote goes as
// the request that was judged, or in reply to one of the server's that was, and all else is the
// gateway's own. A transport opens again by itself what its server has forgotten. It gives back
// bytes that were checked, and decides nothing.
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

// Errors of a [Session]. They say how much is known of a request that has no usable
// answer; compare with errors.Is.
var (
	// ErrNeverSent means that the request provably never left the gateway, or was
	// turned away before the server read it.
	ErrNeverSent = errors.New("the request never reached the server")
	// ErrTimeout means that the request left and no answer came in time.
	ErrTimeout = errors.New("the server did not answer in time")
	// ErrNoAnswer means that the request left and no usable answer came back.
	ErrNoAnswer = errors.New("the server gave no usable answer")
)

const (
	// MaxMessage is the largest message that is taken from a server, in bytes.
	MaxMessage = 16 << 20
	// MaxEvents is how many messages may come before the answer to one request: all of
	// them are read, and may be for nobody.
	MaxEvents = 100_000
	// MaxStream is how many bytes may come with it.
	MaxStream = 64 << 20
)

// Reasons of ours for which a request ends early, which say nothing about its server.
// Errors wrap them; compare with errors.Is.
var (
	// ErrClosed means that the session was closed.
	ErrClosed = errors.New("the session was closed")
	// ErrCancelled means that the client cancelled the request.
	ErrCancelled = errors.New("the client cancelled the request")
	// ErrShutdown means that the gateway stops.
	ErrShutdown = errors.New("the gateway shuts down")
)

// ErrNoStream means that a server says nothing aside of requests. Compare with errors.Is.
var ErrNoStream = errors.New("the server has no stream")

// ErrLeft means that a server has ended the stream of its answer and wants its client to come back, with no
// event to come back behind. Compare with errors.Is.
var ErrLeft = errors.New("the server ended the stream of its answer and gave no way back to it")

// ErrSessionLost means that a server no longer knows a session, though it does not say so by 404. A request that found
// it out may have run. The session can't be used any more. Compare with errors.Is.
var ErrSessionLost = errors.New("the server no longer knows the session")

// ErrOneSession means that a server refuses a session because it takes one in all, which the gateway has used to list its
// tools: no client's session can be lent for that, since that would mix principals. Compare with errors.Is.
var ErrOneSession = errors.New("the server takes one session in all, and the gateway has used it to list what the server has; " +
	"have the server make a transport for each session, or none")

// ErrRevision means that a server does not speak the revision that it was greeted in. Compare with
// errors.Is.
var ErrRevision = errors.New("the server does not speak this revision of MCP")

// NotCarried is what a server reads whose request no client takes.
const NotCarried = "No client takes this request here."

// A Transport carries messages to one server and back. Nobody uses it but a [Server].
// Implementations are safe for concurrent use.
type Transport interface {
	// Open opens a session for a principal: it sends a hello, which is a whole JSON-RPC request,
	// and returns the connection and the answer to it. The hello is initialize or, where there
	// are to be no sessions, server/discover: then the error wraps [ErrRevision] where the server
	// answers that it can't do without. Sessions of two principals never share what the server
	// keeps for one of them.
	Open(ctx context.Context, who principal.Key, hello Request) (Conn, Answer, error)
	// Kind is `http`, `stdio` or `grpc`.
	Kind() string
	// ToolsChanged has something once the server has said that its list of tools has
	// changed; nil where it can't say so.
	ToolsChanged() <-chan struct{}
	// Close ends every connection and waits for what it started.
	Close() error
}

// A Starter is a [Transport] that starts programs.
type Starter interface {
	// StartingSince is when the oldest start began that is under way, of any principal; zero if none is.
	StartingSince() time.Time
	// Notice says what an operator should know of the program though calls go on; empty if there is nothing.
	Notice() string
}

// A Conn is one session over a [Transport]. Nobody uses it but a [Session]. It is safe
// for concurrent use.
type Conn interface {
	// Request sends a request and returns the answer to it. Messages that the
	// server sends before go to events, in order, until the answer: notifications that
	// belong to the request, and requests of the server's own, each of which whoever takes
	// it has to see answered. A ping is answered here. Where events is nil nobody takes any,
	// and requests are refused. Errors wrap [ErrNeverSent], [ErrTimeout] or [ErrNoAnswer].
	Request(ctx context.Context, req Request, events func(message []byte)) (Answer, error)
	// Notify sends a notification, or the answer to a request of the server's own. Errors
	// are those of Request.
	Notify(ctx context.Context, req Request) error
	// Listen brings what the server says aside of all requests, until ctx ends, the server
	// ends its stream or there is nobody to take it. Pings are answered here, and answers
	// dropped. Errors wrap [ErrNoStream] where the server has none.
	Listen(ctx context.Context, to Listener) error
	// Close ends the session with the server. Requests in flight end.
	Close(ctx context.Context) error
}

// A Listener takes what a server says aside of all requests. Its functions are required.
type Listener struct {
	// After is the id of the last event that was heard; empty where none was.
	After string
	// Room is what a message takes while it is heard.
	Room *room.Holding
	// Opened is called once it is known that the server has a stream.
	Opened func()
	// Event takes one event, until an error says that nobody hears it any more.
	Event func(Event) error
}

// An Event is one of a server's stream (HTML Standard, section 9.2.6).
type Event struct {
	// ID names it, so that who lost the stream can go on behind it; may be empty.
	ID string
	// Retry is how long to wait before that, in milliseconds, decimal; may be empty.
	Retry string
	// Message is a notification or a request, which may be looked at until the next event;
	// nil for none.
	Message []byte
}

// Request is one JSON-RPC message to a server.
type Request struct {
	// Message is what is sent, byte for byte: it was judged, or is the gateway's own. It
	// is not changed.
	Message *gate.Message
	// TraceParent is the W3C traceparent that the server is to see; may be empty.
	TraceParent string
	// Once says that the request is never sent a second time, also where the server
	// says that it has forgotten the session.
	Once bool
	// Mirrored is what the head says of the arguments, where there are no sessions.
	Mirrored []Header
	// May decides on what the server asks of the client where it has to be asked in an answer, as the
	// raw request: nil lets it, and else the server gets this answer. A nil May refuses all.
	May func(ctx context.Context, id, raw []byte) *Own
	// Leave ends the wait for the answer, with this cause; nil where nobody does. It may be called at any
	// time, also later.
	Leave context.CancelCauseFunc
	// Room is what the answer takes, which has to be as large before it is read. It
	// belongs to one request at a time, and is closed by whoever made it, once nobody
	// reads the answer any more. Where it is nil only small answers are taken, and
	// nothing that comes before them.
	Room *room.Holding
}

// A Header is a field of a request's head: a whole name, and a value that is not encoded yet.
type Header struct{ Name, Value string }

// Body is the whole message.
func (r Request) Body() []byte { return r.Message.Raw }

// ID is the raw JSON of its id; nil for a notification.
func (r Request) ID() []byte { return r.Message.ID.Of(r.Message.Raw) }

// Method is its method.
func (r Request) Method() string { return r.Message.Method }

// ProgressToken is the raw JSON of the token for its progress; nil where it asks for none.
func (r Request) ProgressToken() []byte { return r.Message.Meta.ProgressToken.Of(r.Message.Raw) }

// Kind is what it is; [gate.Invalid] for no message.
func (r Request) Kind() gate.Kind {
	if r.Message == nil {
		return gate.Invalid
	}
	return r.Message.Kind
}

// Refuses reports whether an answer says that the server does not know what it was asked, as far as
// its status and its error tell. That it knows nobody, has no time or a fault says nothing of that.
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
	// Message is the whole JSON-RPC response as the gate read it, with the id of
	// the request.
	Message *gate.Answer
	// Status is the HTTP status; 0 where the transport has none.
	Status int
}
