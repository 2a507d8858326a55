package streamable

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-mesh/sluice/services/gateway/internal/bodyreader"
	"github.com/sluice-mesh/sluice/services/gateway/internal/httpclient"
	"github.com/sluice-mesh/sluice/services/gateway/internal/limits"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

const (
	// maxShownHost, maxShownPath and maxShownSegment are the maximum lengths, in bytes, of the parts of a server's address
	// that are shown. A longer path segment could be a credential or contain instructions for a model.
	maxShownHost, maxShownPath, maxShownSegment = 100, 100, 16
	// cut replaces the omitted parts.
	cut = "…"
)

// shownType matches the media types that errors may contain. codings are the content codings that errors may contain.
var (
	shownType = regexp.MustCompile(`^[a-z0-9.+-]{1,32}/[a-z0-9.+-]{1,32}$`)
	codings   = []string{"gzip", "br", "deflate", "zstd", "compress"}
)

// withCause returns an error of the given class. It wraps err in a CauseError if resp shows why the server's response
// cannot be used. If the server has refused the access token of a person, it has not executed the request, so the error
// wraps [upstream.ErrNeverSent] instead of class.
func (s *Transport) withCause(resp *http.Response, class, err error) error {
	if cause := s.refusalCause(resp, err); cause != nil {
		if cause.SignIn && resp.StatusCode == http.StatusUnauthorized {
			class = upstream.ErrNeverSent
		}
		return fmt.Errorf("%w: %w", class, cause)
	}
	err = fmt.Errorf("%w: %w", class, err)
	for _, other := range []error{context.DeadlineExceeded, context.Canceled, limits.ErrMemory, bodyreader.ErrSlow, upstream.ErrForged} {
		if errors.Is(err, other) {
			return err
		}
	}
	text, lasts := s.cause(resp)
	if text == "" {
		return err
	}
	return &upstream.CauseError{Text: text, Lasts: lasts, Err: err}
}

// refusalCause returns the cause of an error if the server refuses the access token, or nil if it does not.
func (s *Transport) refusalCause(resp *http.Response, err error) *upstream.CauseError {
	if s.tokens == nil || resp.StatusCode != http.StatusUnauthorized && resp.StatusCode != http.StatusForbidden {
		return nil
	}
	scopes, lacksScopes := requiredScopes(resp)
	isRefused := lacksScopes || refusesToken(resp)
	return s.tokens.RefusedCause(resp.StatusCode, isRefused, scopes, err)
}

// cause returns the reason why a response cannot be used, and reports whether later responses will have the same
// problem. text is empty if the reason can't be determined from the response.
func (s *Transport) cause(resp *http.Response) (text string, lasts bool) {
	key := "servers." + s.name + ".http"
	coding := strings.ToLower(strings.TrimSpace(resp.Header.Get("Content-Encoding")))
	kind := contentType(resp)
	switch {
	case resp.StatusCode == http.StatusUnauthorized, resp.StatusCode == http.StatusForbidden:
		return fmt.Sprintf("the server refuses the gateway: HTTP %d; look at its headers (%s.headers)", resp.StatusCode, key), true
	case resp.StatusCode >= 300 && resp.StatusCode < 400:
		if address := s.shownAddress(resp.Header.Get("Location")); address != "" {
			return fmt.Sprintf("it answered %d to %s: write that address (%s.url)", resp.StatusCode, address, key), true
		}
		return fmt.Sprintf("it answered %d without another address", resp.StatusCode), true
	case resp.StatusCode >= 400:
		return "", false // nothing is added, because errors already contain the status
	case coding != "" && coding != "identity":
		if !slices.Contains(codings, coding) {
			coding = "an unknown coding"
		}
		return "it compresses its answers (" + coding + "), which the gateway does not accept: turn compression off", true
	case resp.StatusCode == http.StatusOK && kind != typeJSON && kind != typeEvents:
		if !shownType.MatchString(kind) {
			kind = "another type of content"
		}
		return "it answered with " + kind + ", which is not MCP: is the address right (" + key + ".url)?", true
	default:
		return "", false
	}
}

// shownAddress converts an address from a server into a form that every caller may see. The result is escaped, and its
// length is limited. It contains no user, no query, no fragment, and no parts that could be a credential. It is "" if
// location is not an address that may be shown.
func (s *Transport) shownAddress(location string) string {
	at, err := s.url.Parse(location)
	if location == "" || err != nil || at.Scheme != "http" && at.Scheme != "https" || at.Host == "" || len(at.Host) > maxShownHost {
		return ""
	}
	host := strconv.QuoteToASCII(at.Host)
	if s.secrets.Load().address.Log(at.Host) != at.Host || host != `"`+at.Host+`"` {
		return ""
	}
	return at.Scheme + "://" + at.Host + s.shownPath(at)
}

func (s *Transport) shownPath(at *url.URL) string {
	if s.secrets.Load().address.Log(at.Path) != at.Path {
		return "/" + cut
	}
	var out strings.Builder
	for i, segment := range strings.Split(at.EscapedPath(), "/") {
		if i > 0 {
			out.WriteByte('/')
		}
		if out.Len() > maxShownPath {
			return out.String() + cut
		}
		if len(segment) > maxShownSegment || strings.Contains(segment, "%") {
			segment = cut
		}
		out.WriteString(segment)
	}
	return out.String()
}

// connectError wraps err in a CauseError that explains why the gateway can't connect, with advice. It returns err
// unchanged if callers may not see the reason.
func (s *Transport) connectError(err error) error {
	key := "servers." + s.name + ".http"
	text, lasts := "", false
	if refused, ok := errors.AsType[*httpclient.ProxyError](err); ok {
		text, lasts = fmt.Sprintf("the proxy of the server answered %d (%s.proxy)", refused.Status, key), refused.Status < 500
		if refused.Status == http.StatusProxyAuthRequired {
			text = "the proxy of the server refuses the gateway: HTTP 407; look at the credentials in " + key + ".proxy"
		}
	} else if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "proxyconnect" {
		text = "the proxy of the server can't be reached (" + key + ".proxy)"
	} else if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		text, lasts = "the server's certificate can't be verified: "+untrusted(err, key), true
	} else if s.hint != "" && errors.Is(err, httpclient.ErrUnreached) {
		text = "the server can't be reached; " + s.hint
	}
	if text == "" {
		return err
	}
	return &upstream.CauseError{Text: text, Detail: upstream.Network(err), Lasts: lasts, Err: err}
}

// untrusted returns the reason why a certificate was not trusted, with advice.
func untrusted(err error, key string) string {
	if _, ok := errors.AsType[x509.HostnameError](err); ok {
		return "it is for another host"
	}
	if invalid, ok := errors.AsType[x509.CertificateInvalidError](err); ok && invalid.Reason == x509.Expired {
		return "it has expired, or is not valid yet"
	}
	return "the gateway does not trust its issuer; if the CA is your own, set " + key + ".ca"
}
