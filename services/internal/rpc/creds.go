package rpc

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/connlimit"
)

// pipeInfo is the [credentials.AuthInfo] of a pipe inside one process. It identifies the client, which is a service of
// the mesh.
type pipeInfo struct {
	credentials.CommonAuthInfo
	peer authn.Peer
}

// AuthType implements [credentials.AuthInfo].
func (pipeInfo) AuthType() string { return "pipe" }

// pipeConn is the server's end of a pipe from another service in this process.
type pipeConn struct {
	net.Conn
	peer authn.Peer
}

// serverCreds accepts pipes and network connections. A pipe already identifies the client. A network connection uses
// the embedded credentials.
type serverCreds struct {
	credentials.TransportCredentials
}

// ServerHandshake implements [credentials.TransportCredentials].
func (c serverCreds) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	if pipe, ok := conn.(pipeConn); ok {
		level := credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}
		return conn, pipeInfo{CommonAuthInfo: level, peer: pipe.peer}, nil
	}
	at, ok := conn.(*connlimit.Conn)
	if !ok {
		return nil, nil, errors.New("the connection was not accepted by connlimit")
	}
	secured, info, err := c.TransportCredentials.ServerHandshake(conn)
	if err != nil {
		return nil, nil, err
	}
	v := newNetPeer(info, at)
	secured = countedConn{secured, &v.unread}
	if from, isRole, err := v.role(); err == nil && isRole {
		return secured, v, v.identify(&authn.Caller{Role: from.Role})
	}
	return secured, v, nil
}

// Clone implements [credentials.TransportCredentials].
func (c serverCreds) Clone() credentials.TransportCredentials {
	return serverCreds{c.TransportCredentials.Clone()}
}

// networkCreds returns the credentials for network connections. They use TLS if it is configured. [Server.Serve] allows
// a listener without TLS only on loopback.
func networkCreds(cfg *tls.Config) serverCreds {
	if cfg == nil {
		return serverCreds{insecure.NewCredentials()}
	}
	return serverCreds{credentials.NewTLS(cfg)}
}

// ServerTLS returns the TLS configuration of a service's listener. The listener presents the service's certificate. If
// a client sends a certificate, the listener verifies it against the CA. People send no certificate and use a token
// instead. present returns the certificate and the CA. It is called once for each handshake, possibly concurrently.
func ServerTLS(present func() (*tls.Certificate, *x509.CertPool)) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			cert, ca := present()
			if cert == nil {
				return nil, errors.New("there is no certificate")
			}
			if ca == nil {
				ca = x509.NewCertPool() // nil would mean every CA that the system trusts
			}
			return &tls.Config{
				Certificates:           []tls.Certificate{*cert},
				ClientCAs:              ca,
				ClientAuth:             tls.VerifyClientCertIfGiven,
				MinVersion:             tls.VersionTLS13,
				NextProtos:             []string{"h2"},
				SessionTicketsDisabled: true, // the client's certificate is verified at every handshake
			}, nil
		},
	}
}

// ClientTLS returns the TLS configuration of a connection to the service with the given role. The client verifies the
// role in the server's certificate instead of a host name, so a certificate is valid on every host of its service. cert
// may be nil for people, who use a token.
func ClientTLS(cert *tls.Certificate, ca *x509.CertPool, server authv1.Role) *tls.Config {
	cfg := &tls.Config{
		MinVersion:         tls.VersionTLS13,
		InsecureSkipVerify: true, //nolint:gosec // verifyRole verifies the chain and the role instead of a host name
		VerifyConnection: func(state tls.ConnectionState) error {
			return verifyRole(state, ca, server)
		},
	}
	if cert != nil {
		cfg.Certificates = []tls.Certificate{*cert}
	}
	return cfg
}

// verifyRole returns an error unless the CA has issued the server's certificate and the certificate contains the
// expected role.
func verifyRole(state tls.ConnectionState, ca *x509.CertPool, want authv1.Role) error {
	if ca == nil || len(state.PeerCertificates) == 0 {
		return errors.New("the server sent no certificate, or no CA is configured")
	}
	between := x509.NewCertPool()
	for _, c := range state.PeerCertificates[1:] {
		between.AddCert(c)
	}
	leaf := state.PeerCertificates[0]
	if _, err := leaf.Verify(x509.VerifyOptions{Roots: ca, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}); err != nil {
		return fmt.Errorf("verify the server's certificate: %w", err)
	}
	got, err := authn.PeerOf(leaf)
	if err != nil {
		return fmt.Errorf("verify the server's certificate: %w", err)
	}
	if got.Role != want {
		return fmt.Errorf("the server is the role %s, want %s", authn.RoleName(got.Role), authn.RoleName(want))
	}
	return nil
}

// bearer contains the credentials of a person. It sends the person's token with every call.
type bearer struct {
	token string
	// plaintext allows sending the token without TLS. This is safe only for a loopback listener.
	plaintext bool
}

// GetRequestMetadata implements [credentials.PerRPCCredentials].
func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + b.token}, nil
}

// RequireTransportSecurity implements [credentials.PerRPCCredentials].
func (b bearer) RequireTransportSecurity() bool { return !b.plaintext }
