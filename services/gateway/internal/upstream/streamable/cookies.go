package streamable

import (
	"cmp"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/wire"
	"github.com/sluice-mesh/sluice/services/internal/scrub"
)

const (
	// maxCookies is how many cookies are stored for a session, and maxCookie the longest line that sets one, in bytes
	// (RFC 6265, section 6.1, asks for at least 50 of 4096).
	maxCookies = 16
	maxCookie  = 4 << 10
	// maxOld is how many replaced values are remembered.
	maxOld = 4
)

// cookies are the cookies that a server has set in one session, for example for a load balancer that routes to the
// backend of the session. They are sent only to the configured host, only in this session, and are stored in memory. A
// nil *cookies stores none. It is safe for concurrent use.
type cookies struct {
	at      *url.URL
	secrets []string

	mu  sync.Mutex
	all []*http.Cookie // the oldest first
	old []string       // the last replaced values, which may still appear in an answer
	// clean redacts the server's secrets and the values of the cookies, which may be credentials.
	clean *scrub.Scrubber
}

// newCookies returns an empty store for a session with this server.
func (s *Transport) newCookies() *cookies {
	return &cookies{at: s.url, secrets: s.secrets, clean: s.clean}
}

// take stores the cookies that an answer sets. Like a browser, it ignores cookies of other hosts or paths, and cookies
// with Secure on a connection without TLS.
func (c *cookies) take(answer http.Header) {
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
			set.Expires = time.Now().Add(time.Duration(min(set.MaxAge, maxAge)) * time.Second) //nolint:gosec // maxAge bounds it
		}
		c.all = slices.DeleteFunc(c.all, func(old *http.Cookie) bool {
			same := old.Name == set.Name && old.Path == set.Path
			if same && old.Value != set.Value {
				c.old = append(c.old[max(0, len(c.old)-maxOld+1):], old.Value)
			}
			return same
		})
		if set.MaxAge < 0 || !set.Expires.IsZero() && !set.Expires.After(time.Now()) {
			continue
		}
		if len(c.all) == maxCookies {
			c.all = c.all[1:]
		}
		c.all = append(c.all, &http.Cookie{Name: set.Name, Value: set.Value, Path: set.Path, Expires: set.Expires}) //nolint:gosec // it is only sent back to the server that set it
	}
	c.clean = scrub.New(nil, slices.Concat(c.secrets, c.values()))
}

// values returns the values that no answer may contain. The caller holds the lock.
func (c *cookies) values() []string {
	out := slices.Clone(c.old)
	for _, kept := range c.all {
		out = append(out, kept.Value)
	}
	return out
}

// holds reports whether a text contains the value of a cookie.
func (c *cookies) holds(text string) bool {
	if c == nil {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.ContainsFunc(c.values(), func(value string) bool { return len(value) >= minHeld && strings.Contains(text, value) })
}

// minHeld is the shortest value that holds looks for, in bytes: shorter ones are words of any text.
const minHeld = 6

// maxAge is the longest lifetime of a cookie, in seconds: no session lasts longer.
const maxAge = 365 * 24 * 60 * 60

// isFor reports whether a cookie belongs to the configured address (RFC 6265, sections 5.1.3, 5.1.4 and 5.3).
func (c *cookies) isFor(set *http.Cookie) bool {
	host, domain := strings.ToLower(c.at.Hostname()), strings.ToLower(strings.TrimPrefix(set.Domain, "."))
	path, at := set.Path, cmp.Or(c.at.EscapedPath(), "/")
	covers := !strings.HasPrefix(path, "/") || at == path || strings.HasPrefix(at, path) && (strings.HasSuffix(path, "/") || at[len(path)] == '/')
	return covers && (domain == "" || host == domain || strings.HasSuffix(host, "."+domain)) && (!set.Secure || c.at.Scheme == "https")
}

// field returns the Cookie field of a request: the configured cookies, then those of the session.
func (c *cookies) field(configured string) wire.Field {
	out := wire.Field{Name: "Cookie", Value: configured}
	if c == nil {
		return out
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, kept := range c.all {
		if !kept.Expires.IsZero() && !kept.Expires.After(time.Now()) {
			continue
		}
		if out.Value != "" {
			out.Value += "; "
		}
		out.Value += kept.Name + "=" + kept.Value
	}
	return out
}

// scrubber returns the scrubber for answers in the session.
func (c *cookies) scrubber() *scrub.Scrubber {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.clean
}
