// Package tokenhttp sends HTTP requests that contain a caller's token. It sends the token to other machines only with
// TLS. The only exception is the host in the parameter cleartextTo of [New]. It does not follow redirects.
package tokenhttp

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"net/url"

	"github.com/sluice-mesh/sluice/services/internal/loopback"
)

// maxTarget is the maximum length in bytes of an untrusted string in an error message.
const maxTarget = 200

// RefusedError is the reason why a request was not sent or a redirect was not followed. The token was not sent to the
// refused address.
type RefusedError struct{ why string }

// Error implements error.
func (e *RefusedError) Error() string { return e.why }

// New returns a client that trusts the given root certificates. If roots is nil, the client trusts the system's root
// certificates. The client sends the token without TLS only to loopback addresses and to the host cleartextTo, which
// may be empty. If the token may not be sent to the URL of a request, the client's error wraps a [RefusedError].
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

// transport sends requests without TLS to loopback addresses and to the host cleartextTo, and with TLS to all hosts.
type transport struct {
	plain, cleartext, secure *http.Transport
	cleartextTo              string
}

// CloseIdleConnections closes the idle connections. [http.Client.CloseIdleConnections] calls it.
func (t *transport) CloseIdleConnections() {
	t.plain.CloseIdleConnections()
	t.cleartext.CloseIdleConnections()
	t.secure.CloseIdleConnections()
}

func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	chosen, err := t.transportFor(req.URL)
	if err != nil {
		return nil, err
	}
	resp, err := chosen.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode >= 300 && resp.StatusCode < 400 {
		_ = resp.Body.Close()
		return nil, redirectError(req.URL, resp)
	}
	return resp, nil
}

// transportFor returns the transport for a URL, or a [RefusedError] if the token may not be sent to the URL.
func (t *transport) transportFor(u *url.URL) (*http.Transport, error) {
	switch {
	case u.User != nil:
		return nil, &RefusedError{"the token is not sent, because the URL of the mesh contains a user name or a password: " +
			"write http://HOST:PORT or https://HOST:PORT, and set SLUICE_TOKEN to the token"}
	case u.Scheme == "https":
		return t.secure, nil
	case u.Scheme == "http" && loopback.Host(u.Hostname()):
		return t.plain, nil
	case u.Scheme == "http" && t.cleartextTo != "" && u.Hostname() == t.cleartextTo:
		return t.cleartext, nil
	case u.Scheme == "http":
		return nil, &RefusedError{fmt.Sprintf("the token is not sent to %q, because with http everyone on the network can read it: "+
			"use https (listen_tls, or behind_proxy with a proxy that speaks TLS), or a loopback address such as "+
			"http://127.0.0.1:%s at the end of a tunnel; if you trust the network, "+
			"--token-in-cleartext-to %s accepts the risk", truncate(u.Host), portOf(u), truncate(u.Hostname()))}
	default:
		return nil, &RefusedError{fmt.Sprintf("the token is not sent, because the URL of the mesh begins with %q: it must begin with https://, or with http:// "+
			"on this machine", truncate(u.Scheme))}
	}
}

func portOf(u *url.URL) string {
	if port := u.Port(); port != "" {
		return port
	}
	return "80"
}

// redirectError returns an error that contains the target of a redirect. It omits the target's user, query and
// fragment, because they may contain secrets.
func redirectError(from *url.URL, resp *http.Response) error {
	target := "nowhere"
	if to, err := resp.Location(); err == nil {
		to.User, to.RawQuery, to.Fragment = nil, "", ""
		target = truncate(to.String())
	}
	return &RefusedError{fmt.Sprintf("%s answered %s, which redirects to %q: no redirect is followed with a token. "+
		"If the mesh has that address, set SLUICE_URL to it", truncate(from.Scheme+"://"+from.Host), resp.Status, target)}
}

func truncate(text string) string { return text[:min(len(text), maxTarget)] }
