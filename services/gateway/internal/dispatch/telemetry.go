package dispatch

import (
	"context"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/meters"
	"github.com/sluice-mesh/sluice/services/gateway/internal/spans"
)

// Measure records in the metrics how long the gateway took to handle a client's request or notification. It ignores
// responses, because they have no method.
func (x *Exchange) Measure(ctx context.Context, resp Response) {
	if x.Message.Method != "" {
		o, took := meters.Operation{Method: x.Message.Method, ErrorType: resp.ErrorType, Transport: x.Place().Transport}, time.Since(x.Received)
		x.Deps.Meters.RecordServed(ctx, o, took, resp.Held)
	}
}

// Place returns the server, revision and session of the message, for use in a span. Unknown values are empty.
func (x *Exchange) Place() spans.Place {
	return spans.Place{Server: x.ServerName, Transport: "tcp", Version: x.Version, Session: x.SessionDigest}
}
