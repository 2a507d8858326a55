package grpctools

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	"github.com/sluice-mesh/sluice/services/gateway/internal/httpclient"
)

const (
	// window is the maximum number of bytes that are buffered for one unread response. allWindows is the maximum number of
	// bytes that are buffered for all unread responses on one connection.
	window     = 64 << 10
	allWindows = 1 << 20
	// maxHeaders is the maximum size of a server's headers and trailers, in bytes.
	maxHeaders = 16 << 10
)

// Dial returns a connection to an external server at host:port. The connection is established on first use. It is never
// established to a link-local address, or to another address that is not allowed for configured hosts. ca is the path
// of a PEM file with the only trusted certificates. If ca is empty, the system's certificates are trusted. A call is
// sent again only if the server has not processed it.
func Dial(target, ca string, plaintext bool) (*grpc.ClientConn, error) {
	host, _, err := net.SplitHostPort(target)
	if err != nil {
		return nil, fmt.Errorf("%q is not an address such as tools.example.com:443: %w", target, err)
	}
	creds := insecure.NewCredentials()
	if !plaintext {
		cfg := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: host}
		if ca != "" {
			if cfg.RootCAs, err = roots(ca); err != nil {
				return nil, err
			}
		}
		creds = credentials.NewTLS(cfg)
	}
	dial := httpclient.Dial(host)
	conn, err := grpc.NewClient("passthrough:///"+target,
		grpc.WithTransportCredentials(creds),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) { return dial(ctx, "tcp", address) }),
		grpc.WithDisableServiceConfig(),
		grpc.WithDisableRetry(),
		grpc.WithInitialWindowSize(window),
		grpc.WithInitialConnWindowSize(allWindows),
		grpc.WithMaxHeaderListSize(maxHeaders),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 6 * time.Minute, Timeout: 20 * time.Second}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: 5 * time.Second,
		}),
	)
	if err != nil {
		return nil, fmt.Errorf("reach %s: %w", target, err)
	}
	return conn, nil
}

func roots(path string) (*x509.CertPool, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the certificates to trust: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s contains no certificates in PEM", path)
	}
	return pool, nil
}
