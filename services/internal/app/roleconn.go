package app

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/pki"
	"github.com/sluice-mesh/sluice/services/internal/rpc"
)

// drainTimeout is how long calls may still use a connection after it was replaced. Then the connection is closed, and
// clients must reopen their streams.
const drainTimeout = 30 * time.Second

// roleConn is the connection to another service of the mesh. It uses this service's current certificate. It is replaced
// when that certificate changes, and when the other service's certificate expires. The principals that a connection
// transmits are signed with the key of the connection's own certificate. A roleConn is safe for concurrent use.
type roleConn struct {
	target string
	to     authv1.Role
	from   authv1.Role
	keys   *pki.Source[pki.Keys]
	deps   rpc.ClientDeps
	log    *slog.Logger

	mu       sync.Mutex
	conn     *rpc.Conn
	draining map[*rpc.Conn]*time.Timer
	// renewal replaces the connection at renewAt. This is when the first of the certificates expires that the other
	// service has presented.
	renewal *time.Timer
	renewAt time.Time
	closed  bool
}

// open opens the first connection.
func (l *roleConn) open() error {
	conn, err := l.dial()
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conn, l.draining = conn, make(map[*rpc.Conn]*time.Timer)
	return nil
}

func (l *roleConn) dial() (*rpc.Conn, error) {
	keys := l.keys.Current()
	deps := l.deps
	if authn.Signs(l.from) {
		var err error
		if deps.Signer, err = authn.NewSigner(l.from, keys.Key); err != nil {
			return nil, err
		}
	}
	cfg := rpc.ClientTLS(&keys.Cert, keys.Pool, l.to)
	verify := cfg.VerifyConnection
	cfg.VerifyConnection = func(state tls.ConnectionState) error {
		if err := verify(state); err != nil {
			return err
		}
		l.renewBy(state.PeerCertificates[0].NotAfter)
		return nil
	}
	return rpc.Dial(l.target, l.to, cfg, deps)
}

// renewBy schedules the replacement of the connection for the given time, when the server's certificate expires. On the
// new connection, the server must present a valid certificate.
func (l *roleConn) renewBy(end time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || l.renewal != nil && !end.Before(l.renewAt) {
		return // the earlier replacement stays scheduled
	}
	l.stopRenewal()
	l.renewal, l.renewAt = time.AfterFunc(time.Until(end), l.renew), end
}

func (l *roleConn) stopRenewal() {
	if l.renewal != nil {
		l.renewal.Stop()
		l.renewal = nil
	}
}

// renew replaces the current connection and closes the old one after drainTimeout.
func (l *roleConn) renew() {
	l.mu.Lock()
	l.stopRenewal() // the next connection schedules its own renewal
	l.mu.Unlock()
	next, err := l.dial()
	if err != nil {
		l.log.ErrorContext(context.Background(), "the connection can't be replaced, so the old one stays in use", "to", authn.RoleName(l.to), "error", err)
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		_ = next.Close() // no call uses the new connection
		return
	}
	last := l.conn
	l.conn = next
	l.draining[last] = time.AfterFunc(drainTimeout, func() {
		l.mu.Lock()
		delete(l.draining, last)
		l.mu.Unlock()
		_ = last.Close() // calls that still use the old connection fail
	})
}

func (l *roleConn) present() *rpc.Conn {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.conn
}

// Invoke implements [grpc.ClientConnInterface].
func (l *roleConn) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	return l.present().Invoke(ctx, method, args, reply, opts...)
}

// NewStream implements [grpc.ClientConnInterface].
func (l *roleConn) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	return l.present().NewStream(ctx, desc, method, opts...)
}

// Close closes every connection.
func (l *roleConn) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	l.stopRenewal()
	errs := []error{l.conn.Close()}
	for conn, timer := range l.draining {
		if timer.Stop() {
			errs = append(errs, conn.Close())
		}
	}
	return errors.Join(errs...)
}
