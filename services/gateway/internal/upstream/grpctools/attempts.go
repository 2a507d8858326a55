package grpctools

import (
	"context"
	"errors"
	"fmt"

	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

// maxRefused is the maximum number of times that a call is sent to a server that refuses to process it.
const maxRefused = 3

var errRefused = errors.New("the server closed the connection or refused the stream before it processed the call")

// attempts observes the attempts of gRPC to send one message. It implements [credentials.PerRPCCredentials], because
// gRPC requests credentials in each attempt before it sends the first byte.
//
// If a server reports that it has not processed a call, for example with GOAWAY, gRPC sends the same message again on
// the next connection, even with grpc.WithDisableRetry. The permit that allowed the call to begin may have expired by
// then. Therefore, attempts makes the second attempt fail. The caller then starts a new call and renews the permit.
type attempts struct {
	permit upstream.Permit
	// sent is true once gRPC has received the message. refused is true if gRPC has tried to send the message again.
	sent, refused bool
	// withheld is the error of the last renewal of the permit, or nil.
	withheld error
}

// GetRequestMetadata implements credentials.PerRPCCredentials. It runs in the goroutine that uses the stream.
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
