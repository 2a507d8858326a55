package edge

import (
	"context"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/dispatch"
	"github.com/sluice-mesh/sluice/services/gateway/internal/meters"
	"github.com/sluice-mesh/sluice/services/gateway/internal/spans"
)

// measure measures how long the client's message took. An answer has no method and
// is none of the client's own messages.
func (x *exchange) measure(ctx context.Context, resp dispatch.Response) {
	if x.msg.Method != "" {
		o, took := meters.Operation{Method: x.msg.Method, ErrorType: resp.ErrorType, Transport: x.place().Transport}, time.Since(x.received)
		x.deps.Meters.Served(ctx, o, took, resp.Held)
	}
}

// place is where the message comes from, as far as it is known.
func (x *exchange) place() spans.Place {
	return spans.Place{Server: x.server, Transport: "tcp", Version: x.version, Session: x.session}
}
