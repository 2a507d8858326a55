package edge

import (
	"net/http"

	"go.opentelemetry.io/otel/trace"

	"github.com/sluice-mesh/sluice/services/gateway/internal/dispatch"
	"github.com/sluice-mesh/sluice/services/gateway/internal/session"
)

// exchange is one message of an authenticated caller while it is handled.
type exchange struct {
	*front
	dispatch.Exchange

	// header is the headers of the message.
	header http.Header
	// span is the span of the message; nil before the message is read.
	span trace.Span
	// leaves releases the session; nil before there is one. finally are more steps to take once the message is answered; a
	// message to one of many servers has those of the message that it came in, whose steps field holds them.
	leaves  func()
	finally *finally
	steps   finally
	// hub is the aggregate session to which this exchange with one server belongs; nil if there is none.
	hub *session.Session
	// protocol is what depends on the family of the message's revision.
	protocol protocol
}

type finally []func()

func (f *finally) add(step func()) { *f = append(*f, step) }

func (f *finally) run() {
	for _, step := range *f {
		defer step() // the last one runs first, and the others run even if one panics
	}
	*f = nil
}
