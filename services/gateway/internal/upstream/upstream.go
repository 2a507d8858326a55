// Package upstream connects the gateway to MCP servers. The gateway sends every message to a server through a [Session]
// of a [Server]. Messages from clients are sent only if the policy has allowed them. The gateway itself writes all
// other messages. A [Transport] opens a new session if its server has lost one, and checks the server's messages. It
// does not evaluate calls.
package upstream

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/limits"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/internal/principal"
)

// These are the errors of a [Session]. They say what is known about a request that has no usable answer. Use errors.Is
// to test for them.
var (
	// ErrNeverSent means that the request never left the gateway, or that it was rejected before the server read it.
	ErrNeverSent = errors.New("the request never reached the server")
	// ErrWithheld means that the request's permit could not be renewed. Such an error also wraps ErrNeverSent.
	ErrWithheld = errors.New("the request was not sent, because its permission is no longer valid")
	// ErrTimeout means that the request was sent and no answer arrived before the timeout.
	ErrTimeout = errors.New("the server did not answer in time")
	// ErrNoAnswer means that the request was sent and no usable answer arrived.
	ErrNoAnswer = errors.New("the server gave no usable answer")
)

const (
	// MaxMessage is the maximum size, in bytes, of a message from a server.
	MaxMessage = 16 << 20
	// MaxEvents is the maximum number of messages that a server may send before the answer to one request. Messages that
	// no client receives count, too.
	MaxEvents = 100_000
	// MaxStream is the maximum total size, in bytes, of one answer and the messages before it.
	MaxStream = 64 << 20
)

// These are the errors of requests that the gateway or the client has ended. They say nothing about the state of the
// server. They may be wrapped in other errors, so use errors.Is to test for them.
var (
	// ErrClosed means that the session was closed.
	ErrClosed = errors.New("the session was closed")
	// ErrCancelled means that the client has cancelled the request.
	ErrCancelled = errors.New("the client cancelled the request")
	// ErrShutdown means that the gateway is shutting down.
	ErrShutdown = errors.New("the gateway shuts down")
)

// ErrNoStream means that a server sends no messages outside requests. Use errors.Is to test for it.
var ErrNoStream = errors.New("the server has no stream")

// ErrStreamEnded means that a server has ended a stream before the answer. The stream can't be resumed, because the
// server has not sent an event id. Use errors.Is to test for it.
var ErrStreamEnded = errors.New("the server ended the stream of its answer, which can't be resumed without an event id")

// ErrSessionLost means that a session can no longer be used. Either the server no longer knows the session, although it
// has not answered with status 404, or the gateway has ended the session because of [ErrSignedOut]. The request that
// fails with this error may have been executed, unless the error also wraps [ErrNeverSent]. Compare with errors.Is.
var ErrSessionLost = errors.New("the server no longer knows the session")

// ErrSignedOut means, in addition to ErrSessionLost, that the session's account at the server was disconnected or
// replaced. The error also wraps a [CauseError]. Compare with errors.Is.
var ErrSignedOut = errors.New("the account of the session was disconnected or replaced")

// ErrOneSession means that a server refuses a session because it accepts only one session in total, and the gateway has
// used that session to list the server's tools. A client cannot use that session, because different principals must not
// share a session. Compare with errors.Is.
var ErrOneSession = errors.New("the server accepts only one session in total, and the gateway has used it to list the server's tools; " +
	"configure the server to create a transport for each session, or to work without sessions")

// ErrRevision means that a server does not support the protocol revision of the first request. Use errors.Is to test
// for it.
var ErrRevision = errors.New("the server does not speak this revision of MCP")

// NoClientForRequest is the message of the error that a server receives if its request cannot be sent to a client.
const NoClientForRequest = "No client accepts this request here."

// KindHost is the kind of a transport that represents a client's own tools.
const KindHost = "host"

// A Transport sends messages to one server and receives its messages. Only a [Server] uses a Transport. Implementations
// must be safe for concurrent use.
type Transport interface {
	// Open opens a session for a principal. It sends hello, which is a complete JSON-RPC request, and returns the
	// connection and the server's answer. hello is an initialize request. For a connection without sessions, hello is a
	// server/discover request. If the server's error in response to server/discover means that the server needs a session,
	// Open returns an error that wraps [ErrRevision]. The sessions of different principals never share state in the
	// server.
	Open(ctx context.Context, key principal.Key, hello Request) (Conn, Answer, error)
	// Kind returns `http`, `stdio`, `grpc` or [KindHost].
	Kind() string
	// ToolsChanged returns a channel that receives a value after the server has reported a change to its tool list. The
	// channel is nil if the transport cannot receive such reports.
	ToolsChanged() <-chan struct{}
	// Close closes all connections and waits until the goroutines and processes of the transport have ended.
	Close() error
}

// A Starter is a [Transport] that starts processes.
type Starter interface {
	// StartingSince returns the time at which the oldest process that is not ready yet was started, for any principal. It
	// returns the zero time if no process is starting.
	StartingSince() time.Time
	// Notice returns a warning for operators about the processes, or "" if there is none. The problem does not make calls
	// fail.
	Notice() string
}

// A Conn is one session over a [Transport]. Only a [Session] uses a Conn. A Conn is safe for concurrent use.
type Conn interface {
	// Request sends a request and returns the answer. Until the answer arrives, it calls events with each message from the
	// server, in order. These messages are notifications that belong to the request, and requests from the server. The
	// caller must send a response to each request from the server, except for pings, to which Request itself responds. If
	// events is nil, notifications are dropped and the server's requests are refused. Errors wrap [ErrNeverSent],
	// [ErrTimeout] or [ErrNoAnswer].
	Request(ctx context.Context, req Request, events func(message []byte)) (Answer, error)
	// Notify sends a notification, or the response to a server's request. It returns the same errors as Request.
	Notify(ctx context.Context, req Request) error
	// Listen waits for messages that the server sends outside requests. The listener receives these messages. Listen
	// returns when ctx is done, the server ends its stream, or the listener returns an error. Listen responds to pings and
	// drops responses. If the server has no such stream, the error wraps [ErrNoStream].
	Listen(ctx context.Context, to Listener) error
	// Close ends the session with the server and all requests in flight.
	Close(ctx context.Context) error
}

// A Listener receives the messages that a server sends outside requests. Opened and Event are required.
type Listener struct {
	// After is the id of the last received event, or "" if no event was received.
	After string
	// Room is the memory budget for the message that is currently received.
	Room *limits.Memory
	// Opened is called after the server has opened its stream.
	Opened func()
	// Event receives one event. If it returns an error, the stream ends.
	Event func(Event) error
}

// An Event is one event in a server's stream (HTML Standard, section 9.2.6).
type Event struct {
	// ID identifies the event. A client that has lost the stream can resume it after this event. ID may be empty.
	ID string
	// Retry is how long the client waits before it resumes the stream, as a decimal number of milliseconds. It may be
	// empty.
	Retry string
	// Message is a notification or a request. It is valid until the next event, and is nil if the event has no message.
	Message []byte
}

// Request is one JSON-RPC message to a server.
type Request struct {
	// Message is sent unmodified. It is a client's message that the policy has allowed, or a message from the gateway.
	Message *jsonrpc.Message
	// TraceParent is the W3C traceparent for the server. It may be empty.
	TraceParent string
	// Once is true if the request must not be sent a second time. This also applies if the server reports that it has lost
	// the session or has not processed the request.
	Once bool
	// Permit is renewed when a connection or a process can accept the request, before the first byte of the request's body
	// is sent. If the renewal fails, nothing is sent. The error of the request then wraps the error of Renew and
	// [ErrNeverSent]. If Permit is nil, the request is sent without this check.
	Permit Permit
	// Person is the person on whose behalf a session is opened. If each person uses their own account at the server, all
	// requests in the session use this person's account. Person is the zero key if no person is known. It is also the zero
	// key in requests that do not open a session.
	Person principal.Key
	// Mirrored contains the HTTP headers that repeat arguments of the call, for connections of revision 2026-07-28.
	Mirrored []Header
	// May evaluates a request from the server that the client would receive inside an answer. id is the raw id of the
	// request, and raw is the request itself. May returns nil to allow the request. Otherwise, the server receives the
	// message that May returns. If May is nil, all such requests are refused.
	May func(ctx context.Context, id, raw []byte) *GatewayMessage
	// Leave stops waiting for the answer, with the given cause. It may be called before or after the answer has arrived.
	// Leave is nil if this is not possible.
	Leave context.CancelCauseFunc
	// Room is the memory budget for the answer. The size of the answer is charged to the budget before the answer is read.
	// A budget must not be used by two requests at the same time. The code that has created a budget closes it when the
	// answer is no longer needed. If Room is nil, only small answers are accepted, and no messages before the answer.
	Room *limits.Memory
}

// A Header is an HTTP header field of a request. Value is not encoded yet.
type Header struct{ Name, Value string }

// A Permit allows a request to begin, but only for a short time. Then it must be renewed. It is safe for concurrent
// use.
type Permit interface {
	// Renew returns nil if the request may begin now. It may wait for the policy service.
	Renew() error
	// HasEnded reports whether Renew must be called again before the request begins. It does not wait.
	HasEnded() bool
}

// MayBegin renews the request's permit. If this fails, the error also wraps [ErrNeverSent].
func (r Request) MayBegin() error { return Renew(r.Permit) }

// Renew renews a permit. If this fails, the error also wraps [ErrNeverSent]. Renew returns nil if the permit is nil.
func Renew(permit Permit) error {
	if permit == nil {
		return nil
	}
	if err := permit.Renew(); err != nil {
		return fmt.Errorf("%w: %w: %w", ErrNeverSent, ErrWithheld, err)
	}
	return nil
}

// Body returns the whole message.
func (r Request) Body() []byte { return r.Message.Raw }

// ID returns the raw id of the request, or nil for a notification.
func (r Request) ID() []byte { return r.Message.ID.Of(r.Message.Raw) }

// Method returns the method of the message.
func (r Request) Method() string { return r.Message.Method }

// ProgressToken returns the raw progress token of the request, or nil if the request has none.
func (r Request) ProgressToken() []byte { return r.Message.Meta.ProgressToken.Of(r.Message.Raw) }

// Kind returns the kind of the message, or [jsonrpc.Invalid] if there is no message.
func (r Request) Kind() jsonrpc.Kind {
	if r.Message == nil {
		return jsonrpc.Invalid
	}
	return r.Message.Kind
}

// IsUnknownRequest reports whether the status and the error code in an answer mean that the server does not know the
// requested method or resource. It returns false for answers that report problems with authentication, load or the
// server itself.
func (a Answer) IsUnknownRequest() bool {
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
	// Message is the whole JSON-RPC response. Its id is the id of the request.
	Message *jsonrpc.Answer
	// Status is the HTTP status. It is 0 if the transport is not HTTP.
	Status int
}
