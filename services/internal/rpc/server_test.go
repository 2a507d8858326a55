package rpc_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/wrapperspb"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/pki"
	"github.com/sluice-mesh/sluice/services/internal/rpc"
)

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }

// reflect requests the list of services from the reflection service.
func reflect(ctx context.Context, conn grpc.ClientConnInterface, version string) error {
	method := "/grpc.reflection." + version + ".ServerReflection/ServerReflectionInfo"
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method)
	if err != nil {
		return err
	}
	request := &reflectionv1.ServerReflectionRequest{MessageRequest: &reflectionv1.ServerReflectionRequest_ListServices{}}
	if err := stream.SendMsg(request); err != nil {
		return stream.RecvMsg(new(reflectionv1.ServerReflectionResponse))
	}
	return stream.RecvMsg(new(reflectionv1.ServerReflectionResponse))
}

// rawConn returns a connection that does not use the mesh's client.
func rawConn(t *testing.T, addr string, creds credentials.TransportCredentials) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(creds))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// Case I5. Clients use different TLS settings and certificates. Only the TLS setting and the client's certificate
// determine whether the server accepts the client.
func TestServer_RefusesWrongCertificates(t *testing.T) {
	t.Parallel()
	s := newTestServer(t, whoami().register(t))
	foreign, err := pki.NewAuthority()
	if err != nil {
		t.Fatal(err)
	}
	leaf := func(life time.Duration, uris ...string) pki.Leaf { return pki.Leaf{Name: "x", URIs: uris, Life: life} }
	const role = "spiffe://sluice/gateway"
	tests := []struct {
		name   string
		from   *pki.Authority
		leaf   pki.Leaf
		code   codes.Code
		reason string
	}{
		{"the gateway's", s.authority, leaf(0, role), codes.OK, ""},
		{"another CA's", foreign, leaf(0, role), codes.Unavailable, ""},
		{"an expired one", s.authority, leaf(-1, role), codes.Unavailable, ""},
		{"without a role", s.authority, leaf(0), codes.Unauthenticated, "UNAUTHENTICATED"},
		{"with an unknown role", s.authority, leaf(0, "spiffe://sluice/root"), codes.Unauthenticated, "UNAUTHENTICATED"},
		{"of another trust domain", s.authority, leaf(0, "spiffe://elsewhere/gateway"), codes.Unauthenticated, "UNAUTHENTICATED"},
		{"with two roles", s.authority, leaf(0, role, "spiffe://sluice/policy"), codes.Unauthenticated, "UNAUTHENTICATED"},
		{"of a role that may not", s.authority, leaf(0, "spiffe://sluice/ratelimit"), codes.PermissionDenied, "CALLER_REFUSED"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			cert := certificate(t, tt.from, tt.leaf)
			got, err := ask(timeoutContext(t), rawConn(t, s.tls, trustingCreds(s.authority, cert)), methodUnary)
			want := ""
			if tt.code == codes.OK {
				want = "gateway,,"
			}
			checkAnswer(t, got, err, want, tt.code, tt.reason)
		})
	}
	t.Run("one that expires on an open connection", func(t *testing.T) {
		t.Parallel()
		conn := rawConn(t, s.tls, trustingCreds(s.authority, certificate(t, s.authority, leaf(3*time.Second, role))))
		got, err := ask(timeoutContext(t), conn, methodUnary)
		checkAnswer(t, got, err, "gateway,,", codes.OK, "")
		waitFor(t, func() bool {
			got, err = ask(timeoutContext(t), conn, methodUnary)
			return err != nil
		})
		checkAnswer(t, got, err, "", codes.Unauthenticated, "UNAUTHENTICATED")
	})
	t.Run("plaintext", func(t *testing.T) {
		t.Parallel()
		_, err := ask(timeoutContext(t), rawConn(t, s.tls, insecure.NewCredentials()), methodUnary)
		checkAnswer(t, "", err, "", codes.Unavailable, "")
	})
	t.Run("TLS 1.2", func(t *testing.T) {
		t.Parallel()
		cfg := &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12, Certificates: []tls.Certificate{certificate(t, s.authority, leaf(0, role))}}
		_, err := ask(timeoutContext(t), rawConn(t, s.tls, credentials.NewTLS(cfg)), methodUnary)
		checkAnswer(t, "", err, "", codes.Unavailable, "")
	})
}

func certificate(t *testing.T, from *pki.Authority, leaf pki.Leaf) tls.Certificate {
	t.Helper()
	certPEM, keyPEM, err := from.Issue(leaf)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		t.Fatal(err)
	}
	return pair
}

// trustingCreds returns the TLS credentials of a client that trusts the CA and presents cert.
func trustingCreds(ca *pki.Authority, cert tls.Certificate) credentials.TransportCredentials {
	return credentials.NewTLS(&tls.Config{RootCAs: ca.Pool(), ServerName: "localhost", Certificates: []tls.Certificate{cert}})
}

// A client of the mesh expects a server with a certain mesh role. It refuses a server with another role.
func TestClientTLS_RefusesOtherRoles(t *testing.T) {
	t.Parallel()
	s := newTestServer(t, whoami().register(t))
	id := s.identity(t, pki.RoleLeaf(gateway))
	foreign, err := pki.NewAuthority()
	if err != nil {
		t.Fatal(err)
	}
	for name, cfg := range map[string]*tls.Config{
		"another role":   rpc.ClientTLS(&id.Cert, s.authority.Pool(), ratelimit),
		"no role":        rpc.ClientTLS(&id.Cert, s.authority.Pool(), authv1.Role_ROLE_UNSPECIFIED),
		"another CA":     rpc.ClientTLS(&id.Cert, foreign.Pool(), policy),
		"no CA":          rpc.ClientTLS(&id.Cert, nil, policy),
		"a person's too": rpc.ClientTLS(nil, foreign.Pool(), policy),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := ask(timeoutContext(t), rawConn(t, s.tls, credentials.NewTLS(cfg)), methodUnary)
			checkAnswer(t, "", err, "", codes.Unavailable, "")
		})
	}
	bare, err := rpc.ServerTLS(func() (*tls.Certificate, *x509.CertPool) { return &id.Cert, nil }).GetConfigForClient(nil)
	if err != nil || bare.ClientCAs == nil {
		t.Errorf("a server without a CA trusts those of the system: %v", err)
	}
	if _, err := rpc.ServerTLS(func() (*tls.Certificate, *x509.CertPool) { return nil, nil }).GetConfigForClient(nil); err == nil {
		t.Error("a server without a certificate accepted a connection")
	}
	if _, err := rpc.Dial("passthrough:///"+s.plain, policy, nil, rpc.ClientDeps{}); err == nil {
		t.Error("a role's connection without TLS was made")
	}
	for _, target := range []string{"example.com:443", "10.0.0.1:9001", "dns:///localhost:1", "localhost", "", "localhost.example.com:1", "[::]:1", "127.0.0.1.nip.io:1", "2130706433:1", "0177.0.0.1:1", "127.1:1", "user@127.0.0.1:1", "[::ffff:10.0.0.1]:1", "unix:///tmp/x"} {
		if conn, err := rpc.DialPerson(target, "token", nil); err == nil {
			_ = conn.Close()
			t.Errorf("a token would be sent in the clear to %q", target)
		}
	}
	for _, target := range []string{"127.0.0.1:1", "[::1]:1", "localhost:1", "127.8.8.8:1"} {
		conn, err := rpc.DialPerson(target, "token", nil)
		if err != nil {
			t.Errorf("%q: %v", target, err)
			continue
		}
		_ = conn.Close()
	}
}

// addressListener is a listener that reports an address other than its own.
type addressListener struct {
	net.Listener
	addr net.Addr
}

func (l addressListener) Addr() net.Addr { return l.addr }

func TestServe_RefusesPlaintextOutsideLoopback(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		addr net.Addr
		ok   bool
	}{
		"IPv4":             {&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}, true},
		"IPv6":             {&net.TCPAddr{IP: net.IPv6loopback}, true},
		"every address":    {&net.TCPAddr{IP: net.IPv4zero}, false},
		"every address, 6": {&net.TCPAddr{IP: net.IPv6unspecified}, false},
		"no address":       {&net.TCPAddr{}, false},
		"a private one":    {&net.TCPAddr{IP: net.IPv4(10, 0, 0, 1)}, false},
		"another network":  {&net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)}, false},
		"nothing known":    {bufconn.Listen(1).Addr(), false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server, err := rpc.NewServer(rpc.ServerConfig{}, rpc.ServerDeps{Tokens: newTokens(t), Log: discard()})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			err = server.Serve(ctx, addressListener{bufconn.Listen(1), tt.addr})
			if tt.ok != (err == nil) || !tt.ok && !strings.Contains(err.Error(), "set tls.dir, or set grpc to an address on 127.0.0.1") {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestNewServer_RequiresDeps(t *testing.T) {
	t.Parallel()
	for name, deps := range map[string]rpc.ServerDeps{"nothing": {}, "tokens": {Log: discard()}, "a log": {Tokens: new(authn.Tokens)}} {
		if _, err := rpc.NewServer(rpc.ServerConfig{}, deps); err == nil {
			t.Errorf("a server was made without %s", name)
		}
	}
	server, err := rpc.NewServer(rpc.ServerConfig{}, rpc.ServerDeps{Tokens: newTokens(t), Log: discard()})
	if err != nil {
		t.Fatal(err)
	}
	if server.Add(policy, nil) == nil {
		t.Error("no service was added")
	}
	for _, role := range []authv1.Role{authv1.Role_ROLE_UNSPECIFIED, 99} {
		if server.Add(role, serviceFunc(func(grpc.ServiceRegistrar) {})) == nil {
			t.Errorf("a service of the role %d was added", role)
		}
		if _, err := server.Conn(authn.Peer{Role: role}, rpc.ClientDeps{}); err == nil {
			t.Errorf("a pipe of the role %d was opened", role)
		}
	}
}

type healthService struct {
	serviceFunc
	err func() error
}

// Health implements [rpc.HealthChecker].
func (h healthService) Health(context.Context) error { return h.err() }

// All callers may call the health service. It reports the health of the services.
func TestHealth_IsForAllCallers(t *testing.T) {
	t.Parallel()
	sick := make(chan error, 1)
	var last error
	s := newTestServer(t, whoami().register(t))
	server := s.server(t, rpc.ServerConfig{}, healthService{serviceFunc(func(grpc.ServiceRegistrar) {}), func() error {
		select {
		case last = <-sick:
		default:
		}
		return last
	}})
	if got := server.CheckHealth(t.Context()); len(got) != 0 {
		t.Errorf("all services are healthy, but the errors are %v", got)
	}
	sick <- errors.New("ill")
	if got := server.CheckHealth(t.Context()); got["policy"] == nil {
		t.Errorf("policy is not healthy, but the errors are %v", got)
	}
	for name, conn := range map[string]grpc.ClientConnInterface{
		"no token": s.person(t, ""), "an agent": s.person(t, tokenText(agent)), "a wrong token": s.person(t, "wrong"),
		"a role": s.paths()[0].as(t, ratelimit, false), "a role over TLS": s.paths()[1].as(t, ratelimit, false),
	} {
		for _, service := range []string{"", "policy"} {
			waitFor(t, func() bool { // a server does not serve until it has checked its services
				resp, err := healthv1.NewHealthClient(conn).Check(timeoutContext(t), &healthv1.HealthCheckRequest{Service: service})
				if err != nil {
					t.Fatalf("%s asks for %q: %v", name, service, err)
				}
				return resp.GetStatus() == healthv1.HealthCheckResponse_SERVING
			})
		}
	}
}

// Case N2. A stream stays open. Therefore unauthenticated callers and agents can't open a stream, even to the health
// service.
func TestHealth_WatchRequiresAuthentication(t *testing.T) {
	t.Parallel()
	s := newTestServer(t, whoami().register(t))
	s.server(t, rpc.ServerConfig{}, healthService{serviceFunc(func(grpc.ServiceRegistrar) {}), func() error { return nil }})
	for name, tt := range map[string]struct {
		conn grpc.ClientConnInterface
		want codes.Code
	}{
		"no token": {s.person(t, ""), codes.Unauthenticated}, "an agent": {s.person(t, tokenText(agent)), codes.PermissionDenied},
		"an operator": {s.person(t, tokenText(operator)), codes.OK},
	} {
		stream, err := healthv1.NewHealthClient(tt.conn).Watch(timeoutContext(t), &healthv1.HealthCheckRequest{})
		if err == nil {
			_, err = stream.Recv()
		}
		if status.Code(err) != tt.want {
			t.Errorf("%s: %v, want %s", name, err, tt.want)
		}
	}
}

// Streams do not end unless a client ends them. A server that is stopping ends them, so that it need not wait for
// silent clients.
func TestServe_StopEndsStreams(t *testing.T) {
	t.Parallel()
	started := make(chan struct{})
	s := newTestServer(t, whoami().register(t))
	server := s.server(t, rpc.ServerConfig{}, probe{
		unary: func(context.Context, *identityv1.RevokeTokenRequest) (string, error) { return "", nil },
		stream: func(ss grpc.BidiStreamingServer[identityv1.RevokeTokenRequest, wrapperspb.StringValue]) error {
			close(started)
			<-ss.Context().Done()
			return ss.Context().Err()
		},
	}.register(t))
	addr, stop := serve(t, server)
	conn, err := rpc.DialPerson(addr, tokenText(operator), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	stream, err := openStream(timeoutContext(t), conn)
	if err != nil {
		t.Fatal(err)
	}
	<-started
	begin := time.Now()
	if err := stop(); err != nil {
		t.Errorf("the server ended with %v", err)
	}
	if took := time.Since(begin); took > 5*time.Second {
		t.Errorf("the stop took %v", took)
	}
	_, err = stream.Recv()
	if status.Code(err) != codes.Unavailable || rpc.Reason(err) != "STOPPING" {
		t.Errorf("the stream ended with %v, want UNAVAILABLE, so that its client asks again", err)
	}
}
