package gateway

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"

	"github.com/sluice-mesh/sluice/services/internal/pki"
)

// listen opens the MCP address and loads the TLS certificate. Without a certificate, MCP is served only on loopback or
// behind proxies that use TLS, because tokens would otherwise be sent unencrypted.
func (s *Service) listen(ctx context.Context) (err error) {
	if s.cfg.CertFile != "" {
		if s.cert, err = pki.WatchPair(s.cfg.CertFile, s.cfg.KeyFile, s.deps.Log); err != nil {
			return fmt.Errorf("listen_tls: %w", err)
		}
	}
	if s.lis, err = new(net.ListenConfig).Listen(ctx, "tcp", s.cfg.Listen); err != nil {
		return fmt.Errorf("listen for MCP (the key `listen`, or --listen): %w", err)
	}
	if s.deps.Wrap != nil {
		s.lis = s.deps.Wrap(s.lis)
	}
	at, ok := s.lis.Addr().(*net.TCPAddr)
	if s.cert == nil && len(s.cfg.Proxies) == 0 && (!ok || !at.IP.IsLoopback()) {
		return fmt.Errorf("listen on %s: MCP without TLS is served only on loopback: set listen_tls, list the proxies that speak TLS for it under behind_proxy, or listen on 127.0.0.1", s.lis.Addr())
	}
	return nil
}

// tlsListener returns the listener for MCP requests. The listener limits the number of connections. It uses TLS if a
// certificate is configured.
func (s *Service) tlsListener() (net.Listener, error) {
	door, err := s.mcp.Listen(s.lis)
	if err != nil || s.cert == nil {
		return door, err
	}
	return tls.NewListener(door, &tls.Config{
		MinVersion:     tls.VersionTLS12,
		NextProtos:     []string{"http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return s.cert.Current(), nil },
	}), nil
}
