package rpc_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/pki"
	"github.com/sluice-mesh/sluice/services/internal/rpc"
)

// BenchmarkUnary measures a call over the network. The caller is a service that uses TLS, or a person. The response is
// small, or fills a flow-control window.
func BenchmarkUnary(b *testing.B) {
	authority, err := pki.NewAuthority()
	if err != nil {
		b.Fatal(err)
	}
	identity := func(leaf pki.Leaf) *pki.Identity {
		certPEM, keyPEM, err := authority.Issue(leaf)
		if err != nil {
			b.Fatal(err)
		}
		id, err := pki.NewIdentity(certPEM, keyPEM)
		if err != nil {
			b.Fatal(err)
		}
		return id
	}
	served := identity(pki.RoleLeaf(policy))
	caller := identity(pki.RoleLeaf(gateway))
	for _, size := range []int{16, 40 << 10} {
		text := strings.Repeat("x", size)
		answer := probe{unary: func(context.Context, *identityv1.RevokeTokenRequest) (string, error) { return text, nil }}
		start := func(cfg rpc.ServerConfig) string {
			server, err := rpc.NewServer(cfg, rpc.ServerDeps{Tokens: newTokens(b), Log: discard()})
			if err != nil {
				b.Fatal(err)
			}
			if err := server.Add(policy, answer.register(b)); err != nil {
				b.Fatal(err)
			}
			lis, err := new(net.ListenConfig).Listen(b.Context(), "tcp", "127.0.0.1:0")
			if err != nil {
				b.Fatal(err)
			}
			go server.Serve(b.Context(), lis)
			return lis.Addr().String()
		}
		secure := rpc.ServerTLS(func() (*tls.Certificate, *x509.CertPool) { return &served.Cert, authority.Pool() })
		role, err := rpc.Dial("passthrough:///"+start(rpc.ServerConfig{TLS: secure}), policy, rpc.ClientTLS(&caller.Cert, authority.Pool(), policy), rpc.ClientDeps{})
		if err != nil {
			b.Fatal(err)
		}
		defer role.Close()
		person, err := rpc.DialPerson(start(rpc.ServerConfig{}), tokenText(operator), nil)
		if err != nil {
			b.Fatal(err)
		}
		defer person.Close()
		for name, conn := range map[string]grpc.ClientConnInterface{"role": role, "person": person} {
			b.Run(fmt.Sprintf("%s/%dB", name, size), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if _, err := ask(b.Context(), conn, methodUnary); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// BenchmarkInside measures a call on behalf of a principal inside one process.
func BenchmarkInside(b *testing.B) {
	server, err := rpc.NewServer(rpc.ServerConfig{}, rpc.ServerDeps{Tokens: newTokens(b), Log: discard()})
	if err != nil {
		b.Fatal(err)
	}
	if err := server.Add(policy, probe{unary: func(context.Context, *identityv1.RevokeTokenRequest) (string, error) { return "", nil }}.register(b)); err != nil {
		b.Fatal(err)
	}
	id, err := pki.Ephemeral(gateway)
	if err != nil {
		b.Fatal(err)
	}
	signs, err := authn.NewSigner(gateway, id.Key)
	if err != nil {
		b.Fatal(err)
	}
	conn, err := server.Conn(id.Peer, rpc.ClientDeps{Signer: signs})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(authn.OnBehalfOf(b.Context(), ana()), time.Hour)
	defer cancel()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ask(ctx, conn, methodUnary); err != nil {
			b.Fatal(err)
		}
	}
}
