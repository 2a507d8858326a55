package upstream

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"syscall"
	"time"
)

const (
	// dialTimeout bounds making a connection.
	dialTimeout = 5 * time.Second
	// maxIdle is how many unused connections to one server are kept. The default
	// of two makes most calls under load open a new one.
	maxIdle = 1024
)

// newTransport returns the transport for one configured host. It refuses
// addresses that no configuration can mean.
func newTransport(host string) *http.Transport {
	private := mayBePrivate(host)
	dialer := &net.Dialer{
		Timeout: dialTimeout,
		ControlContext: func(_ context.Context, _, address string, _ syscall.RawConn) error {
			return checkAddress(host, address, private)
		},
	}
	return &http.Transport{
		DialContext:            dialer.DialContext,
		MaxIdleConns:           maxIdle,
		MaxIdleConnsPerHost:    maxIdle,
		IdleConnTimeout:        idleTimeout,
		TLSHandshakeTimeout:    dialTimeout,
		MaxResponseHeaderBytes: 64 << 10,
		DisableCompression:     true,
		ForceAttemptHTTP2:      true,
		WriteBufferSize:        8 << 10,
		ReadBufferSize:         8 << 10,
	}
}

// mayBePrivate tells whether a configured host may stand for a loopback or
// private address: an address, or a name that no public zone has.
func mayBePrivate(host string) bool {
	if _, err := netip.ParseAddr(host); err == nil {
		return true
	}
	host = strings.TrimSuffix(strings.ToLower(host), ".")
	if !strings.Contains(host, ".") {
		return true
	}
	for _, zone := range []string{".local", ".localhost", ".internal", ".home.arpa", ".lan", ".intranet", ".private", ".corp"} {
		if strings.HasSuffix(host, zone) {
			return true
		}
	}
	return false
}

// checkAddress refuses link-local, multicast and unspecified addresses always,
// and private ones where a public name resolved to them (SSRF by DNS rebinding).
func checkAddress(host, address string, private bool) error {
	ap, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("dial %s: %w", host, err)
	}
	ip := ap.Addr().Unmap()
	switch {
	case ip.IsUnspecified(), ip.IsMulticast(), ip.IsLinkLocalUnicast(), ip.IsInterfaceLocalMulticast():
		return fmt.Errorf("dial %s: %s is a link-local, multicast or unspecified address, where no server is reached", host, ip)
	case !private && (ip.IsLoopback() || ip.IsPrivate()):
		return fmt.Errorf("dial %s: the public name resolves to the private address %s; configure the address itself if that is meant", host, ip)
	default:
		return nil
	}
}
