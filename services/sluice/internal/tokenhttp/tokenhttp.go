// Package tokenhttp makes the HTTP requests that carry a caller's token. It sends no token to another machine without
// TLS, and follows no redirect.
package tokenhttp

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"net/url"

	"github.com/sluice-mesh/sluice/services/internal/loopback"
)

// maxTarget bounds the part of a redirect's target that is shown, in bytes.
const maxTarget = 200

// RefusedError is why a request was not made, or a redirect not followed. The token reached no other machine.
type RefusedError struct{ why string }

// Error implements error.
func (e *RefusedError) Error() string { return e.why }

// New returns a client that trusts these roots, or the system's if roots is nil. cleartextTo is another host to which
// the caller permits the token without TLS; empty for none. Errors of the client wrap a [RefusedError] if the token may
// not go where the request asks.
func New(roots *x509.CertPool, cleartextTo string) *http.Client {
	t := &transport{plain: base(), cleartext: base(), secure: base(), cleartextTo: cleartextTo}
	t.plain.Proxy, t.plain.DialContext = nil, loopback.Dial // a proxy would read the token
	t.cleartext.Proxy = nil
	t.secure.TLSClientConfig = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	return &http.Client{Transport: t}
}

func base() *http.Transport {
	if usual, ok := http.DefaultTransport.(*http.Transport); ok {
		return usual.Clone()
	}
	return new(http.Transport)
}

// transport makes requests without TLS to loopback addresses and to one host that the caller named, and with TLS to
// all.
type transport struct {
	plain, cleartext, secure *http.Transport
	cleartextTo              string
}

// CloseIdleConnections is called by [http.Client.CloseIdleConnections].
func (t *transport) CloseIdleConnections() {
	t.plain.CloseIdleConnections()
	t.cleartext.CloseIdleConnections()
	t.secure.CloseIdleConnections()
}

func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	over, err := t.over(req.URL)
	if err != nil {
		return nil, err
	}
	resp, err := over.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode >= 300 && resp.StatusCode < 400 {
		_ = resp.Body.Close()
		return nil, redirected(req.URL, resp)
	}
	return resp, nil
}

// over returns the transport for a URL, or the error if the token may not go there.
func (t *transport) over(u *url.URL) (*http.Transport, error) {
	switch {
	case u.User != nil:
		return nil, &RefusedError{"the token is not sent, because the URL of the mesh holds a user name or a password: " +
			"give http://HOST:PORT or https://HOST:PORT, and the token as SLUICE_TOKEN"}
	case u.Scheme == "https":
		return t.secure, nil
	case u.Scheme == "http" && loopback.Host(u.Hostname()):
		return t.plain, nil
	case u.Scheme == "http" && t.cleartextTo != "" && u.Hostname() == t.cleartextTo:
		return t.cleartext, nil
	case u.Scheme == "http":
		return nil, &RefusedError{fmt.Sprintf("the token is not sent to %q, because http shows it to all who read the network: "+
			"use https there (listen_tls, or behind_proxy with a proxy that speaks TLS), or a loopback address such as "+
			"http://127.0.0.1:%s at the end of a tunnel; if only the mesh can read that network, "+
			"--token-in-cleartext-to %s accepts the risk", cut(u.Host), portOf(u), cut(u.Hostname()))}
	default:
		return nil, &RefusedError{fmt.Sprintf("the token is not sent: the URL of the mesh begins with https://, or with http:// "+
			"on this machine, and not with %q", cut(u.Scheme))}
	}
}

func portOf(u *url.URL) string {
	if port := u.Port(); port != "" {
		return port
	}
	return "80"
}

// redirected returns an error that names the target of a redirect, without the parts that may be secret.
func redirected(from *url.URL, resp *http.Response) error {
	target := "nowhere"
	if to, err := resp.Location(); err == nil {
		to.User, to.RawQuery, to.Fragment = nil, "", ""
		target = cut(to.String())
	}
	return &RefusedError{fmt.Sprintf("%s answers %s and refers to %q: no redirect is followed with a token. "+
		"If the mesh is there, give that address as SLUICE_URL", cut(from.Scheme+"://"+from.Host), resp.Status, target)}
}

func cut(text string) string { return text[:min(len(text), maxTarget)] }
