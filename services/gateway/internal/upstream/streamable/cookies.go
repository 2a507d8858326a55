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
	// maxCookies is how many cookies of a session are kept, and maxCookie how long the line may be that sets one, in
	// bytes (RFC 6265, section 6.1, asks for at least 50 of 4096).
	maxCookies = 16
	maxCookie  = 4 << 10
	// maxOld is how many values are remembered that were replaced.
	maxOld = 4
)

// cookies are those that a server has set in one session, such as the one by which a load balancer finds the backend
// that knows the session. They go back to the configured host alone, in this session alone, and are kept in memory.
// A nil *cookies keeps none. It is safe for concurrent use.
type cookies struct {
	at      *url.URL
	secrets []string

	mu  sync.Mutex
	all []*http.Cookie // the longest known first
	old []string       // values that were replaced last, which may still come back in an answer
	// clean blots the server's secrets out of what it says, and the values of the cookies, which may be credentials.
	clean *scrub.Scrubber
}

// newCookies keeps cookies of a session with this server.
func (s *Transport) newCookies() *cookies {
	return &cookies{at: s.url, secrets: s.secrets, clean: s.clean}
}

// take keeps what an answer sets. Cookies of other hosts or paths, and those for TLS alone on a connection without it,
// are left out, as a browser does.
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
			set.Expires = time.Now().Add(time.Duration(min(set.MaxAge, maxAge)) * time.Second) //nolint:gosec // see below
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
		c.all = append(c.all, &http.Cookie{Name: set.Name, Value: set.Value, Path: set.Path, Expires: set.Expires}) //nolint:gosec // it goes to the server alone, which has set it
	}
	c.clean = scrub.New(nil, slices.Concat(c.secrets, c.values()))
}

// values are those that no answer is to hold. It needs the lock.
func (c *cookies) values() []string {
	out := slices.Clone(c.old)
	for _, kept := range c.all {
		out = append(out, kept.Value)
	}
	return out
}

// holds reports whether a text has the value of a cookie in it.
func (c *cookies) holds(text string) bool {
	if c == nil {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.ContainsFunc(c.values(), func(value string) bool { return len(value) >= minHeld && strings.Contains(text, value) })
}

// minHeld is how long a value is that is looked for in a text, in bytes: shorter ones are words of any text.
const minHeld = 6

// maxAge is for how long a cookie is kept at most, in seconds: a session is not that old.
const maxAge = 365 * 24 * 60 * 60

// isFor reports whether a cookie belongs to the configured address (RFC 6265, sections 5.1.3, 5.1.4 and 5.3).
func (c *cookies) isFor(set *http.Cookie) bool {
	host, domain := strings.ToLower(c.at.Hostname()), strings.ToLower(strings.TrimPrefix(set.Domain, "."))
	path, at := set.Path, cmp.Or(c.at.EscapedPath(), "/")
	covers := !strings.HasPrefix(path, "/") || at == path || strings.HasPrefix(at, path) && (strings.HasSuffix(path, "/") || at[len(path)] == '/')
	return covers && (domain == "" || host == domain || strings.HasSuffix(host, "."+domain)) && (!set.Secure || c.at.Scheme == "https")
}

// field returns the field of a request's head with the cookies of the session behind those that are configured.
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

// scrubber blots out what no answer in the session is to hold.
func (c *cookies) scrubber() *scrub.Scrubber {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.clean
}
