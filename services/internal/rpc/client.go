package rpc

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/stats"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/loopback"
)

// clientDeadline bounds an outgoing unary call whose context has no deadline.
const clientDeadline = 10 * time.Second

// serviceConfig spreads calls over a role's replicas. Calls wait for a
// connection up to their deadline, so that a restart of the role is no error by
// itself.
const serviceConfig = `{"loadBalancingConfig":[{"round_robin":{}}],"methodConfig":[{"name":[{}],"waitForReady":true}]}`

// ClientDeps are the live objects of a connection; each may be nil.
type ClientDeps struct {
	// Signer signs the principals of [authn.OnBehalfOf]. Without one a call on
	// behalf of somebody is refused before it is sent.
	Signer *authn.Signer
	// Trace makes spans.
	Trace stats.Handler
}

// Dial returns a connection from a role to a role over the network. It connects
// when it is first used.
func Dial(target string, server authv1.Role, cfg *tls.Config, deps ClientDeps) (*Conn, error) {
	if cfg == nil {
		return nil, fmt.Errorf("rpc: connections between roles need TLS: set tls.dir to reach %s at %s", authn.RoleName(server), target)
	}
	side := clientSide{deps: deps, audience: func(string) authv1.Role { return server }}
	opts := []grpc.DialOption{
		grpc.WithTransportCredentials(credentials.NewTLS(cfg)),
		grpc.WithDefaultServiceConfig(serviceConfig),
		grpc.WithDisableServiceConfig(), // DNS says where a role is, not how to call it; and where DNS is slow, its silence is not waited for
		grpc.WithUnaryInterceptor(side.unary),
		grpc.WithStreamInterceptor(side.stream),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 2 * time.Second, PermitWithoutStream: true}),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: reconnect(), MinConnectTimeout: 2 * time.Second}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)),
	}
	if deps.Trace != nil {
		opts = append(opts, grpc.WithStatsHandler(deps.Trace))
	}
	conn, err := grpc.NewClient(target, opts...)
	if err != nil {
		return nil, fmt.Errorf("reach %s at %s: %w", authn.RoleName(server), target, err)
	}
	return newConn(conn, side), nil
}

// DialPerson returns a connection of a person who brings a token; empty brings
// none. cfg nil means plaintext, which is for a listener on loopback alone:
// towards any other target it is an error, for the token would be there for all
// to read.
func DialPerson(target, token string, cfg *tls.Config) (*grpc.ClientConn, error) {
	if cfg == nil && !loopback.Address(target) {
		return nil, fmt.Errorf("reach %s: a token is sent in the clear to loopback alone: set tls.dir to the folder with ca.pem", target)
	}
	creds := insecure.NewCredentials()
	if cfg != nil {
		creds = credentials.NewTLS(cfg)
	}
	opts := []grpc.DialOption{
		grpc.WithTransportCredentials(creds),
		grpc.WithDisableServiceConfig(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)),
	}
	if cfg == nil { // whatever the name resolves to, and without a proxy
		opts = append(opts, grpc.WithContextDialer(func(ctx context.Context, at string) (net.Conn, error) { return loopback.Dial(ctx, "tcp", at) }))
	}
	if token != "" {
		opts = append(opts, grpc.WithPerRPCCredentials(bearer{token: token, plaintext: cfg == nil}))
	}
	conn, err := grpc.NewClient(target, opts...)
	if err != nil {
		return nil, fmt.Errorf("reach %s: %w", target, err)
	}
	return conn, nil
}

// reconnect is quick, so that a role that comes back is found within the time
// that a call waits for it.
func reconnect() backoff.Config {
	return backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second}
}

// clientSide is what every outgoing call passes: a deadline, and the principal
// on whose behalf it is made, signed for the role that is called.
type clientSide struct {
	deps     ClientDeps
	audience func(method string) authv1.Role
}

func (c clientSide) unary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	ctx, cancel, err := c.prepare(ctx, method)
	if err != nil {
		return err
	}
	defer cancel()
	return invoke(ctx, method, req, reply, cc, opts...)
}

func (c clientSide) stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	ctx, err := c.assert(ctx, method)
	if err != nil {
		return nil, err
	}
	return streamer(ctx, desc, cc, method, opts...)
}

// prepare gives an outgoing unary call what it needs.
func (c clientSide) prepare(ctx context.Context, method string) (context.Context, context.CancelFunc, error) {
	ctx, err := c.assert(ctx, method)
	if err != nil {
		return nil, nil, err
	}
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, clientDeadline)
	return ctx, cancel, nil
}

// assert attaches the signed principal. Metadata of that key which came from
// anywhere else is overwritten.
func (c clientSide) assert(ctx context.Context, method string) (context.Context, error) {
	text, err := c.principal(ctx, method)
	if text == "" {
		return ctx, err
	}
	md, ok := metadata.FromOutgoingContext(ctx) // a copy
	if !ok {
		md = make(metadata.MD, 1)
	}
	md.Set(authn.PrincipalKey, text)
	return metadata.NewOutgoingContext(ctx, md), nil
}

// principal is on whose behalf a call is made, signed for whom it calls; empty where it is
// on nobody's.
func (c clientSide) principal(ctx context.Context, method string) (string, error) {
	p := authn.BehalfOf(ctx)
	if p == nil {
		return "", nil
	}
	if c.deps.Signer == nil {
		return "", &Error{Code: codes.Internal, Reason: "NO_SIGNER", Err: errors.New("this role speaks for nobody, and a call on behalf of somebody was made")}
	}
	return c.deps.Signer.Sign(p, c.audience(method))
}
