package grpctools

import (
	"context"
	"errors"
	"fmt"

	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

// maxRefused is the maximum number of times that a call is sent if the server refuses it without processing it.
const maxRefused = 3

// errRefused means that the server has not processed a call.
var errRefused = errors.New("the server closed the connection or refused the stream before it processed the call")

// attempts observes gRPC's attempts to send one message. It implements [credentials.PerRPCCredentials], because gRPC
// asks for credentials in each attempt, before the first byte.
//
// If a server has not processed a call, for example because it has sent GOAWAY, gRPC sends the same message again on
// the next connection, even with grpc.WithDisableRetry. By then the permit may have expired long ago. So attempts makes
// such an attempt fail, and the caller starts a new call, for which the permit is renewed.
type attempts struct {
	permit upstream.Permit
	// sent means that gRPC has the message. refused means that gRPC wanted to send the message again.
	sent, refused bool
	// withheld is the error that the permit has returned, or nil.
	withheld error
}

// GetRequestMetadata implements credentials.PerRPCCredentials. It is called by the goroutine that uses the stream.
func (a *attempts) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	if a.sent {
		a.refused = true
		return nil, errRefused
	}
	return nil, a.mayBegin()
}

// RequireTransportSecurity implements credentials.PerRPCCredentials.
func (*attempts) RequireTransportSecurity() bool { return false }

func (a *attempts) mayBegin() error {
	a.withheld = upstream.Renew(a.permit)
	return a.withheld
}

// errorOf returns the error of a call that has failed with err.
func (a *attempts) errorOf(err error) error {
	switch {
	case a.withheld != nil:
		return a.withheld
	case a.refused:
		return fmt.Errorf("%w: %w", errRefused, err)
	default:
		return err
	}
}
