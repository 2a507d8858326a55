package protocol

import (
	"net/http"

	"go.opentelemetry.io/otel/trace"

	"github.com/sluice-mesh/sluice/services/gateway/internal/dispatch"
	"github.com/sluice-mesh/sluice/services/gateway/internal/session"
)

// Request is a message from an authenticated caller, together with its state. [Router.NewRequest] creates it. One
// goroutine handles a Request. This goroutine must set Cleanup before it calls [Request.Serve], and must call
// [Request.End] afterwards.
type Request struct {
	*Router
	dispatch.Exchange

	// isHook is true if the message comes from a client's hook. Such a message is addressed to one of [Deps.Hosts].
	isHook bool
	// Header is the HTTP header of the message.
	Header http.Header
	// span is the span of the message, or nil if the message was not read yet.
	span trace.Span
	// Release releases the session. It is nil before the session is found.
	Release func()
	// Cleanup contains functions that are called after the response was sent. It usually points to OwnCleanup. For a
	// request that is derived from a message to the URL for all servers, Cleanup points to the OwnCleanup of the client's
	// original request. The exception is a request for pages of a combined list.
	Cleanup    *Cleanup
	OwnCleanup Cleanup
	// Aggregate is the message's aggregate session, or nil if the client has not used the URL for all servers.
	Aggregate *session.Session
	// Protocol implements the behavior that depends on the MCP revision.
	Protocol Protocol
}

// Cleanup is a list of functions that are called after the response to a message was sent. The zero value is an empty
// list. It is not safe for concurrent use.
type Cleanup []func()

// Add appends a function to the list.
func (f *Cleanup) Add(step func()) { *f = append(*f, step) }

// Run calls the functions in reverse order, and empties the list.
func (f *Cleanup) Run() {
	for _, step := range *f {
		defer step() // the other functions run even if one of them panics
	}
	*f = nil
}
