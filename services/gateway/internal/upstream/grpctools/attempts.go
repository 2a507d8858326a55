package grpctools

import (
	"context"
	"errors"
	"fmt"

	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

// maxRefused limits how often a call is sent to a server that does not process it.
const maxRefused = 3

// errRefused means that the server has not processed a call.
var errRefused = errors.New("the server closed the connection or refused the stream before it processed the call")

// attempts observes gRPC's attempts to send one message. It implements [credentials.PerRPCCredentials], because gRPC
// asks for credentials in each attempt, before it sends the first byte.
//
// If a server has not processed a call, for example because it has sent GOAWAY, gRPC sends the same message again on
// the next connection, even with grpc.WithDisableRetry. By then, the permit that allowed the call to begin may have
// expired long ago. attempts therefore makes such an attempt fail. The caller then starts a new call, for which the
// permit is renewed.
type attempts struct {
	permit upstream.Permit
	// sent is true once gRPC has received the message. refused is true if gRPC has tried to send the message again.
	sent, refused bool
	// withheld is the error that the renewal of the permit has returned, or nil.
	withheld error
}

// GetRequestMetadata implements credentials.PerRPCCredentials. The goroutine that uses the stream calls it.
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

// errorOf returns the error to report for a call that has failed with err.
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
