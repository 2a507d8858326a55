package gateway

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"

	"github.com/sluice-mesh/sluice/services/internal/pki"
)

// listen takes hold of the MCP edge's address, and of the certificate that it serves
// with. In the clear it is served on loopback, or behind proxies that speak TLS for it:
// else tokens would be there for all to read.
func (s *Service) listen(ctx context.Context) (err error) {
	if s.cfg.CertFile != "" {
		if s.cert, err = pki.FollowPair(s.cfg.CertFile, s.cfg.KeyFile, s.deps.Log); err != nil {
			return fmt.Errorf("listen_tls: %w", err)
		}
	}
	if s.lis, err = new(net.ListenConfig).Listen(ctx, "tcp", s.cfg.Listen); err != nil {
		return fmt.Errorf("listen for MCP (the key `listen`, or --listen): %w", err)
	}
	at, ok := s.lis.Addr().(*net.TCPAddr)
	if s.cert == nil && len(s.cfg.Proxies) == 0 && (!ok || !at.IP.IsLoopback()) {
		return fmt.Errorf("listen on %s: MCP is served in the clear on loopback alone: set listen_tls, list the proxies that speak TLS for it under behind_proxy, or listen on 127.0.0.1", s.lis.Addr())
	}
	return nil
}

// front is the listener that requests come through: the door, and TLS behind it.
func (s *Service) front() (net.Listener, error) {
	door, err := s.edge.Listen(s.lis)
	if err != nil || s.cert == nil {
		return door, err
	}
	return tls.NewListener(door, &tls.Config{
		MinVersion:     tls.VersionTLS12,
		NextProtos:     []string{"http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return s.cert.Current(), nil },
	}), nil
}
