package rpc

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/door"
	"github.com/sluice-mesh/sluice/services/internal/turn"
)

const (
	// strangerCalls is how many unauthenticated calls a connection carries at a time, and strangerTime how long each
	// may take, including sending. They may only call health.
	strangerCalls = 4
	strangerTime  = 5 * time.Second
	// maxRefusals is how many calls are refused on an unauthenticated connection before it is closed.
	maxRefusals = 100
)

// doorLimits returns the limits for the connections of a listener. An idle connection takes about 100 KiB.
func doorLimits() door.Limits {
	return door.Limits{Strangers: 256, PerAddress: 64, PerCaller: 256, Identify: 10 * time.Second, Piece: 20 * time.Second}
}

// visitor is the AuthInfo of a connection over the network.
type visitor struct {
	credentials.AuthInfo
	conn *door.Conn
	line line
	// from is the role in the client's certificate, unless wrong says why it has none. ends is when the certificate
	// expires; zero if there is no certificate.
	from  authn.Peer
	wrong error
	ends  time.Time
	// strangers counts the unauthenticated calls that are in flight or have an unread answer. refused counts the calls
	// that were refused before authentication.
	strangers, refused atomic.Int32
	// carries is set while a stream of the connection carries calls.
	carries atomic.Bool
}

func newVisitor(info credentials.AuthInfo, conn *door.Conn) *visitor {
	v := &visitor{AuthInfo: info, conn: conn}
	v.line.hangUp = func() { _ = conn.Close() } // without a message, because the client does not read
	secure, ok := info.(credentials.TLSInfo)
	if ok && len(secure.State.VerifiedChains) > 0 && len(secure.State.VerifiedChains[0]) > 0 {
		leaf := secure.State.VerifiedChains[0][0]
		v.from, v.wrong = authn.PeerOf(leaf)
		v.ends = leaf.NotAfter
	}
	return v
}

// role returns the role of the client, and whether it has one. A certificate without a role is an error.
func (v *visitor) role() (authn.Peer, bool, error) {
	switch {
	case v.ends.IsZero():
		return authn.Peer{}, false, nil
	case time.Now().After(v.ends): // the certificate may have expired since the handshake
		return authn.Peer{}, false, errors.New("the certificate has expired since the connection was made; make a new one with `sluice certs`")
	default:
		return v.from, v.wrong == nil, v.wrong
	}
}

// visitorOf returns the connection of a call; nil for a pipe.
func visitorOf(ctx context.Context) *visitor {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return nil
	}
	v, _ := p.AuthInfo.(*visitor)
	return v
}

// identified counts the connection for its caller.
func (v *visitor) identified(caller *authn.Caller) error {
	if v.conn.Known() {
		return nil
	}
	if name := whoseOf(caller).String(); !v.conn.Identified(name) {
		return exhausted("%s has as many connections as it may have: close some of them", name)
	}
	return nil
}

// refuse counts a refused call. An unauthenticated connection with too many of them is closed.
func (v *visitor) refuse() {
	turn.Rest() // refusals are read one by one, so other goroutines run in between
	if !v.conn.Known() && v.refused.Add(1) > maxRefusals {
		_ = v.conn.Close() // the client has received maxRefusals errors
	}
}

// stranger counts an unauthenticated call until its context ends.
func (v *visitor) stranger(ctx context.Context) (context.Context, error) {
	if v.strangers.Add(1) > strangerCalls {
		v.strangers.Add(-1)
		return nil, exhausted("a connection carries at most %d unauthenticated calls at a time", strangerCalls)
	}
	ctx, cancel := context.WithTimeout(ctx, strangerTime)
	context.AfterFunc(ctx, func() {
		cancel()
		v.strangers.Add(-1)
	})
	return ctx, nil
}

func exhausted(format string, args ...any) error {
	return &Error{Code: codes.ResourceExhausted, Reason: "TOO_MUCH", Err: fmt.Errorf(format, args...)}
}
