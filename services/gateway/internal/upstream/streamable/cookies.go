package streamable

import (
	"cmp"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/httpclient"
	"github.com/sluice-mesh/sluice/services/internal/redact"
)

const (
	// maxCookies is the maximum number of cookies that are stored for a session. maxCookie is the maximum length, in
	// bytes, of a Set-Cookie line. RFC 6265, section 6.1, recommends to support at least 50 cookies of 4096 bytes.
	maxCookies = 16
	maxCookie  = 4 << 10
	// maxOld is the maximum number of replaced cookie values that are stored.
	maxOld = 4
)

// cookies contains the cookies that a server has set in one session. For example, a load balancer selects the session's
// backend with a cookie. Cookies are sent only to the configured host and only in this session. They are stored only in
// memory. A nil *cookies stores no cookies. It is safe for concurrent use.
type cookies struct {
	server *Transport

	mu       sync.Mutex
	current  []*http.Cookie // oldest first
	replaced []string       // the last replaced values, which the server may still send
	// clean redacts the server's secrets and the values of the cookies, because these values may be credentials. It is nil
	// if the cookies have changed since it was created. cleaned contains the secrets of the server that clean redacts.
	clean   *redact.Redactor
	cleaned *secrets
}

func (s *Transport) newCookies() *cookies {
	return &cookies{server: s}
}

// store stores the cookies that an answer sets. Like browsers, it ignores cookies for other hosts or paths, and Secure
// cookies from a response without TLS.
func (c *cookies) store(answer http.Header) {
	if c == nil || len(answer["Set-Cookie"]) == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, line := range answer["Set-Cookie"] {
		set, err := http.ParseSetCookie(line)
		if err != nil || len(line) > maxCookie || !c.isFor(set) {
			continue
		}
		if set.MaxAge > 0 {
			set.Expires = time.Now().Add(time.Duration(min(set.MaxAge, maxAge)) * time.Second) //nolint:gosec // maxAge limits it
		}
		c.current = slices.DeleteFunc(c.current, func(old *http.Cookie) bool {
			same := old.Name == set.Name && old.Path == set.Path
			if same && old.Value != set.Value {
				c.replaced = append(c.replaced[max(0, len(c.replaced)-maxOld+1):], old.Value)
			}
			return same
		})
		if set.MaxAge < 0 || !set.Expires.IsZero() && !set.Expires.After(time.Now()) {
			continue
		}
		if len(c.current) == maxCookies {
			c.current = c.current[1:]
		}
		c.current = append(c.current, &http.Cookie{Name: set.Name, Value: set.Value, Path: set.Path, Expires: set.Expires}) //nolint:gosec // the cookie is sent only to the server that has set it
	}
	c.clean = nil
}

// values returns all cookie values that are redacted in answers. The caller must hold the lock.
func (c *cookies) values() []string {
	out := slices.Clone(c.replaced)
	for _, stored := range c.current {
		out = append(out, stored.Value)
	}
	return out
}

func (c *cookies) containsValue(text string) bool {
	if c == nil {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.ContainsFunc(c.values(), func(value string) bool { return len(value) >= minSearched && strings.Contains(text, value) })
}

// minSearched is the minimum length, in bytes, of a value that containsValue searches for. Shorter values could occur
// by chance.
const minSearched = 6

// maxAge is the maximum lifetime of a cookie, in seconds. It is longer than any session.
const maxAge = 365 * 24 * 60 * 60

// isFor reports whether a cookie may be sent to the configured address (RFC 6265, sections 5.1.3, 5.1.4 and 5.3).
func (c *cookies) isFor(set *http.Cookie) bool {
	host, domain := strings.ToLower(c.server.url.Hostname()), strings.ToLower(strings.TrimPrefix(set.Domain, "."))
	path, at := set.Path, cmp.Or(c.server.url.EscapedPath(), "/")
	covers := !strings.HasPrefix(path, "/") || at == path || strings.HasPrefix(at, path) && (strings.HasSuffix(path, "/") || at[len(path)] == '/')
	return covers && (domain == "" || host == domain || strings.HasSuffix(host, "."+domain)) && (!set.Secure || c.server.url.Scheme == "https")
}

// field returns the Cookie header of a request. It contains the configured cookies, followed by the session's cookies.
func (c *cookies) field(configured string) httpclient.Field {
	out := httpclient.Field{Name: "Cookie", Value: configured}
	if c == nil {
		return out
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, stored := range c.current {
		if !stored.Expires.IsZero() && !stored.Expires.After(time.Now()) {
			continue
		}
		if out.Value != "" {
			out.Value += "; "
		}
		out.Value += stored.Name + "=" + stored.Value
	}
	return out
}

func (c *cookies) scrubber() *redact.Redactor {
	now := c.server.secrets.Load()
	c.mu.Lock()
	defer c.mu.Unlock()
	values := c.values()
	if len(values) == 0 {
		return now.clean
	}
	if c.clean == nil || c.cleaned != now {
		c.clean, c.cleaned = redact.New(nil, slices.Concat(now.configured, now.tokens, values)), now
	}
	return c.clean
}
