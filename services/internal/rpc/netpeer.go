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
	"github.com/sluice-mesh/sluice/services/internal/connlimit"
	"github.com/sluice-mesh/sluice/services/internal/gosched"
)

const (
	// maxUnauthenticatedCalls limits how many unauthenticated calls a connection has at a time. unauthenticatedTimeout
	// limits how long each of these calls can take, including the time to send its answer. Unauthenticated callers may
	// call only the health service, and methods by which people get a credential.
	maxUnauthenticatedCalls = 4
	unauthenticatedTimeout  = 5 * time.Second
	// maxRefusals is the number of refused calls after which an unauthenticated connection is closed.
	maxRefusals = 100
)

// listenerLimits returns the limits for the connections of a listener. An idle connection uses about 100 KiB of memory.
func listenerLimits() connlimit.Limits {
	return connlimit.Limits{MaxUnauthenticated: 256, MaxPerAddress: 64, MaxPerCaller: 256, IdentifyTimeout: 10 * time.Second, WriteTimeout: 20 * time.Second}
}

// netPeer is the [credentials.AuthInfo] of a connection over the network.
type netPeer struct {
	credentials.AuthInfo
	conn   *connlimit.Conn
	unread unreadAnswers
	// from is the mesh role in the client's certificate, such as gateway. If there is no role, roleErr is the reason.
	// notAfter is the time at which the certificate expires, or zero if there is no certificate.
	from     authn.Peer
	roleErr  error
	notAfter time.Time
	// unauthenticatedCalls is the number of unauthenticated calls that are in flight or have an unread answer. refused
	// is the number of refused calls while the connection was unauthenticated.
	unauthenticatedCalls, refused atomic.Int32
	// carriesCalls is true while the connection has a shared stream for calls. See [Conn].
	carriesCalls atomic.Bool
}

func newNetPeer(info credentials.AuthInfo, conn *connlimit.Conn) *netPeer {
	v := &netPeer{AuthInfo: info, conn: conn}
	v.unread.closeConn = func() { _ = conn.Close() } // without a message, because the client does not read
	secure, ok := info.(credentials.TLSInfo)
	if ok && len(secure.State.VerifiedChains) > 0 && len(secure.State.VerifiedChains[0]) > 0 {
		leaf := secure.State.VerifiedChains[0][0]
		v.from, v.roleErr = authn.PeerOf(leaf)
		v.notAfter = leaf.NotAfter
	}
	return v
}

// role returns the mesh service at the other end of the connection, and reports whether the client is such a service.
// It returns an error if the client has a certificate without a role.
func (v *netPeer) role() (authn.Peer, bool, error) {
	switch {
	case v.notAfter.IsZero():
		return authn.Peer{}, false, nil
	case time.Now().After(v.notAfter): // the certificate might have expired since the handshake
		return authn.Peer{}, false, errors.New("the certificate has expired since the connection was made; make a new one with `sluice certs`")
	default:
		return v.from, v.roleErr == nil, v.roleErr
	}
}

// netPeerOf returns the network connection of a call, or nil if the call uses a pipe.
func netPeerOf(ctx context.Context) *netPeer {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return nil
	}
	v, _ := p.AuthInfo.(*netPeer)
	return v
}

// identify counts the connection as one of its caller's connections. It returns an error if the caller has too many
// connections.
func (v *netPeer) identify(caller *authn.Caller) error {
	if v.conn.IsIdentified() {
		return nil
	}
	if name := quotaKeyOf(caller).String(); !v.conn.Identify(name) {
		return exhaustedError("%s has the maximum number of connections: close some of them", name)
	}
	return nil
}

// refuse counts a refused call. If the connection is unauthenticated and has too many refused calls, refuse closes it.
func (v *netPeer) refuse() {
	gosched.Yield() // let other goroutines run, because one connection can cause many refusals
	if !v.conn.IsIdentified() && v.refused.Add(1) > maxRefusals {
		_ = v.conn.Close() // the client has received maxRefusals errors
	}
}

// countUnauthenticated counts an unauthenticated call until the call's context is done. It returns an error if the
// connection has too many such calls.
func (v *netPeer) countUnauthenticated(ctx context.Context) (context.Context, error) {
	if v.unauthenticatedCalls.Add(1) > maxUnauthenticatedCalls {
		v.unauthenticatedCalls.Add(-1)
		return nil, exhaustedError("a connection carries at most %d unauthenticated calls at a time", maxUnauthenticatedCalls)
	}
	ctx, cancel := context.WithTimeout(ctx, unauthenticatedTimeout)
	context.AfterFunc(ctx, func() {
		cancel()
		v.unauthenticatedCalls.Add(-1)
	})
	return ctx, nil
}

func exhaustedError(format string, args ...any) error {
	return &Error{Code: codes.ResourceExhausted, Reason: "TOO_MUCH", Err: fmt.Errorf(format, args...)}
}
