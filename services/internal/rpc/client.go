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

// clientDeadline limits the duration of an outgoing unary call whose context has no deadline.
const clientDeadline = 10 * time.Second

// serviceConfig balances calls over the replicas of a service. Calls wait for a connection until their deadline, so
// that a restart of the service causes no errors.
const serviceConfig = `{"loadBalancingConfig":[{"round_robin":{}}],"methodConfig":[{"name":[{}],"waitForReady":true}]}`

// identityConfig sends all calls to one replica of the identity service. A service must acknowledge tokens, and report
// unknown keys, at the replica from which it receives the tokens.
const identityConfig = `{"loadBalancingConfig":[{"pick_first":{"shuffleAddressList":true}}],"methodConfig":[{"name":[{}],"waitForReady":true}]}`

// ClientDeps contains the dependencies of a connection. Each field may be nil.
type ClientDeps struct {
	// Signer signs the principals that [authn.OnBehalfOf] sets. If it is nil, a call on behalf of a principal fails
	// before it is sent.
	Signer *authn.Signer
	// Trace creates spans.
	Trace stats.Handler
}

// Dial returns a connection from one service of the mesh to another over the network. The connection is opened on first
// use.
func Dial(target string, server authv1.Role, cfg *tls.Config, deps ClientDeps) (*Conn, error) {
	if cfg == nil {
		return nil, fmt.Errorf("rpc: connections between roles need TLS: set tls.dir to reach %s at %s", authn.RoleName(server), target)
	}
	side := clientSide{deps: deps, audience: func(string) authv1.Role { return server }}
	balancing := serviceConfig
	if server == authv1.Role_ROLE_IDENTITY {
		balancing = identityConfig
	}
	opts := []grpc.DialOption{
		grpc.WithTransportCredentials(credentials.NewTLS(cfg)),
		grpc.WithDefaultServiceConfig(balancing),
		grpc.WithDisableServiceConfig(), // gRPC looks up only the role's addresses in DNS, so a slow DNS server does not delay calls
		grpc.WithUnaryInterceptor(side.unary),
		grpc.WithStreamInterceptor(side.stream),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 2 * time.Second, PermitWithoutStream: true}),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: reconnectBackoff(), MinConnectTimeout: 2 * time.Second}),
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

// DialPerson returns a connection for a person with a bearer token. An empty token is not sent. If cfg is nil, the
// connection does not use TLS, and others could read the token on the network. In this case, DialPerson returns an
// error unless the target is a loopback address.
func DialPerson(target, token string, cfg *tls.Config) (*grpc.ClientConn, error) {
	if cfg == nil && !loopback.Address(target) {
		return nil, fmt.Errorf("reach %s: without TLS, a token is sent only to loopback: set tls.dir to the folder with ca.pem", target)
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
	if cfg == nil { // connects only to loopback addresses, and without a proxy
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

// reconnectBackoff returns a short backoff, so that waiting calls reach a service soon after the service has restarted.
func reconnectBackoff() backoff.Config {
	return backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second}
}

// clientSide prepares every outgoing call. It sets a deadline. If the call is made on behalf of a principal, it also
// adds a signed assertion that names the principal and is valid only for the called service.
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

// prepare sets the principal and the deadline of an outgoing unary call.
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

// assert adds the signed assertion to the metadata of the call. It replaces any values that the metadata already has
// for the same key.
func (c clientSide) assert(ctx context.Context, method string) (context.Context, error) {
	text, err := c.principal(ctx, method)
	if text == "" {
		return ctx, err
	}
	md, ok := metadata.FromOutgoingContext(ctx) // FromOutgoingContext returns a copy
	if !ok {
		md = make(metadata.MD, 1)
	}
	md.Set(authn.PrincipalKey, text)
	return metadata.NewOutgoingContext(ctx, md), nil
}

// principal returns a signed assertion that names the principal on whose behalf a call is made and is valid only for
// the called service. It returns "" if there is no principal.
func (c clientSide) principal(ctx context.Context, method string) (string, error) {
	p := authn.PrincipalOf(ctx)
	if p == nil {
		return "", nil
	}
	if c.deps.Signer == nil {
		return "", &Error{Code: codes.Internal, Reason: "NO_SIGNER", Err: errors.New("this role can't sign principals, so it can't call on behalf of one")}
	}
	return c.deps.Signer.Sign(p, c.audience(method))
}
