package edge

import (
	"context"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/dispatch"
	"github.com/sluice-mesh/sluice/services/gateway/internal/meters"
	"github.com/sluice-mesh/sluice/services/gateway/internal/spans"
)

// measure records the duration of the client's message, unless it is an answer: an answer has no method.
func (x *core) measure(ctx context.Context, resp dispatch.Response) {
	if x.msg.Method != "" {
		o, took := meters.Operation{Method: x.msg.Method, ErrorType: resp.ErrorType, Transport: x.place().Transport}, time.Since(x.received)
		x.Deps.Meters.Served(ctx, o, took, resp.Held)
	}
}

// place returns server, revision and session of the message, as far as they are known.
func (x *core) place() spans.Place {
	return spans.Place{Server: x.server, Transport: "tcp", Version: x.version, Session: x.session}
}
