package protocol

import (
	"net/http"

	"go.opentelemetry.io/otel/trace"

	"github.com/sluice-mesh/sluice/services/gateway/internal/dispatch"
	"github.com/sluice-mesh/sluice/services/gateway/internal/session"
)

// Request is one message of an authenticated caller while it is handled. [Router.NewRequest] creates it. One goroutine
// handles a Request. Its user sets Cleanup before [Request.Serve], and calls [Request.End] afterwards.
type Request struct {
	*Router
	dispatch.Exchange

	// Header is the HTTP header of the message.
	Header http.Header
	// span is the span of the message; nil before the message is read.
	span trace.Span
	// Release releases the session; nil before there is one.
	Release func()
	// Cleanup are the steps to take after the message is answered: OwnCleanup or, if this request was made for one of
	// many servers, the OwnCleanup of the client's request.
	Cleanup    *Cleanup
	OwnCleanup Cleanup
	// Aggregate is the aggregate session to which this message to one server belongs; nil if there is none.
	Aggregate *session.Session
	// Protocol does what the families of revisions do differently.
	Protocol Protocol
}

// Cleanup is a list of steps to take after a message is answered. The zero value is empty. It is for one goroutine.
type Cleanup []func()

// Add appends a step.
func (f *Cleanup) Add(step func()) { *f = append(*f, step) }

// Run takes the steps, the last one first, and empties the list.
func (f *Cleanup) Run() {
	for _, step := range *f {
		defer step() // the other steps run even if one panics
	}
	*f = nil
}
