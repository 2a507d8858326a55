package protocol

import (
	"net/http"

	"go.opentelemetry.io/otel/trace"

	"github.com/sluice-mesh/sluice/services/gateway/internal/dispatch"
	"github.com/sluice-mesh/sluice/services/gateway/internal/session"
)

// Request is one message of an authenticated caller while it is handled.
type Request struct {
	*Router
	dispatch.Exchange

	// Header is the headers of the message.
	Header http.Header
	// span is the span of the message; nil before the message is read.
	span trace.Span
	// Release releases the session; nil before there is one. finally are more steps to take once the message is answered; a
	// message to one of many servers has those of the message that it came in, whose steps field holds them.
	Release    func()
	Cleanup    *Cleanup
	OwnCleanup Cleanup
	// Aggregate is the aggregate session to which this exchange with one server belongs; nil if there is none.
	Aggregate *session.Session
	// Protocol is what depends on the family of the message's revision.
	Protocol Protocol
}

type Cleanup []func()

func (f *Cleanup) Add(step func()) { *f = append(*f, step) }

func (f *Cleanup) Run() {
	for _, step := range *f {
		defer step() // the last one runs first, and the others run even if one panics
	}
	*f = nil
}
