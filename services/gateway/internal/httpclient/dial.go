package httpclient

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"time"
)

const (
	// dialTimeout is the timeout for establishing a connection.
	dialTimeout = 5 * time.Second
	// maxIdle limits how many idle connections to one server stay open. With the default of net/http, which is two,
	// most calls would open a new connection under load.
	maxIdle = 1024
	// idleTimeout is how long an idle connection to a server stays open.
	idleTimeout = 90 * time.Second
	// receiveBuffer is the size of the receive buffer that is requested from the operating system for each connection,
	// in bytes. The system may use twice as much. For HTTP/2 it is also the flow-control window of each stream. These
	// buffers do not count against any memory budget.
	receiveBuffer = 128 << 10
)

// Options configure the connection to a server. If Options has the zero value, the client connects directly and trusts
// the system's certificates.
type Options struct {
	// Proxy is the http or https URL of a proxy that supports CONNECT, including credentials. If Proxy is nil, no proxy
	// is used.
	Proxy *url.URL
	// Roots are the only trusted root certificates, including for an https proxy. If Roots is nil, the system's
	// certificates are trusted.
	Roots *x509.CertPool
}

// New returns a client for one configured endpoint. The client never connects to a link-local address. If the
// configured name is public, the client does not connect to private addresses either.
//
// If a proxy is configured, the proxy's address is checked instead. The endpoint's address is checked only if it is an
// IP address, because the proxy resolves names. New returns an error if the endpoint's address is refused. It also
// returns an error if a proxy is configured for an endpoint without TLS, because the proxy could read the requests.
func New(u *url.URL, opts Options) (*Client, error) {
	if opts.Proxy == nil {
		return newDirect(u, opts), nil
	}
	if u.Scheme != "https" {
		return nil, errors.New("a proxy is used only for https, with CONNECT")
	}
	if ip, err := netip.ParseAddr(u.Hostname()); err == nil {
		if err := checkAddress(u.Hostname(), netip.AddrPortFrom(ip, 443).String(), true); err != nil {
			return nil, err
		}
	}
	rest := newTransport(opts.Proxy.Hostname())
	rest.Proxy = http.ProxyURL(opts.Proxy)
	rest.OnProxyConnectResponse = func(_ context.Context, _ *url.URL, _ *http.Request, answer *http.Response) error {
		if answer.StatusCode != http.StatusOK {
			return &ProxyError{Status: answer.StatusCode}
		}
		return nil
	}
	rest.TLSClientConfig = trusting(opts.Roots)
	return &Client{transport: rest}, nil
}

// A ProxyError means that a proxy has refused to connect to a server.
type ProxyError struct {
	// Status is the HTTP status of the proxy's response.
	Status int
}

// Error implements error.
func (e *ProxyError) Error() string { return fmt.Sprintf("the proxy answered %d", e.Status) }

func trusting(roots *x509.CertPool) *tls.Config {
	if roots == nil {
		return nil
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots}
}

func newDirect(u *url.URL, opts Options) *Client {
	w := &Client{transport: newTransport(u.Hostname())}
	w.transport.TLSClientConfig = trusting(opts.Roots)
	if u.Scheme == "http" {
		w.addr = net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), "80"))
	}
	return w
}

// Dial returns a dial function for an http.Transport that connects to one configured host. The function refuses
// addresses that the host is not allowed to resolve to.
func Dial(host string) func(ctx context.Context, network, address string) (net.Conn, error) {
	allowPrivate := mayBePrivate(host)
	dialer := &net.Dialer{
		Timeout: dialTimeout,
		ControlContext: func(_ context.Context, _, address string, _ syscall.RawConn) error {
			return checkAddress(host, address, allowPrivate)
		},
	}
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dialer.DialContext(ctx, network, address)
		if tcp, ok := conn.(*net.TCPConn); ok {
			_ = tcp.SetReadBuffer(receiveBuffer) // without this call the system chooses the size
		}
		return conn, err
	}
}

func newTransport(host string) *http.Transport {
	return &http.Transport{
		DialContext:            Dial(host),
		HTTP2:                  &http.HTTP2Config{MaxReceiveBufferPerStream: receiveBuffer},
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

// mayBePrivate reports whether a configured host may resolve to a loopback or private address. This is the case if the
// host is an IP address, or if its name is not in a public zone.
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

// specialRanges contains address ranges in which there are no public servers (IANA's registries of special-purpose
// addresses) and that the methods of netip do not recognize.
var specialRanges = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"),      // RFC 791: this network
	netip.MustParsePrefix("100.64.0.0/10"),  // RFC 6598: shared by a provider's customers, and some clouds' metadata
	netip.MustParsePrefix("192.0.0.0/24"),   // RFC 6890: protocol assignments
	netip.MustParsePrefix("198.18.0.0/15"),  // RFC 2544: benchmarks
	netip.MustParsePrefix("240.0.0.0/4"),    // RFC 1112: reserved, and the broadcast address
	netip.MustParsePrefix("::/96"),          // RFC 4291: IPv4-compatible
	netip.MustParsePrefix("64:ff9b:1::/48"), // RFC 8215: translation for local use
	netip.MustParsePrefix("fec0::/10"),      // RFC 3879: site-local
}

// These IPv6 ranges embed IPv4 addresses. A connection to an address in one of these ranges is forwarded to the
// embedded IPv4 address.
var (
	nat64  = netip.MustParsePrefix("64:ff9b::/96") // RFC 6052
	sixTo4 = netip.MustParsePrefix("2002::/16")    // RFC 3056
)

// checkAddress returns an error for link-local, multicast and unspecified addresses. Unless allowPrivate is true, it
// also returns an error for all other addresses that are not public, so that a public name cannot lead to an internal
// server (SSRF by DNS rebinding).
func checkAddress(host, address string, allowPrivate bool) error {
	ap, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("dial %s: %w", host, err)
	}
	ip := finalAddress(ap.Addr())
	switch {
	case ip.IsUnspecified(), ip.IsMulticast(), ip.IsLinkLocalUnicast():
		return fmt.Errorf("dial %s: %s is a link-local, multicast or unspecified address, at which no server can be", host, ip)
	case !allowPrivate && !isPublic(ip):
		return fmt.Errorf("dial %s: the public name resolves to %s, which is not a public address; if this is intended, configure the address instead of the name", host, ip)
	default:
		return nil
	}
}

// finalAddress returns the address to which a connection to ip is finally forwarded. The result has no zone.
func finalAddress(ip netip.Addr) netip.Addr {
	ip = ip.Unmap().WithZone("")
	raw := ip.As16()
	switch {
	case nat64.Contains(ip):
		return netip.AddrFrom4([4]byte(raw[12:]))
	case sixTo4.Contains(ip):
		return netip.AddrFrom4([4]byte(raw[2:6]))
	default:
		return ip
	}
}

func isPublic(ip netip.Addr) bool {
	return !ip.IsLoopback() && !ip.IsPrivate() &&
		!slices.ContainsFunc(specialRanges, func(p netip.Prefix) bool { return p.Contains(ip) })
}
