package edge

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/gateway/internal/session"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/enum"
	"github.com/sluice-mesh/sluice/services/internal/principal"
)

// caller is who sent a request, as its credential says and nothing else.
type caller struct {
	principal *identityv1.Principal
	// stale says that the token may have been revoked meanwhile.
	stale bool
	// revoked reports whether it was, or may have been, by now.
	revoked func() bool
}

// key is under what the caller's session with a server is found.
func (c caller) key(server string) session.Key {
	return session.Key{Key: principal.Of(c.principal), Server: server}
}

// sameSite refuses what a browser on another site could have been made to send
// (DNS rebinding, CSRF), whoever it is for. Health is exempt: probes name any
// host.
func (e *Edge) sameSite(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/healthz", r.URL.Path == "/readyz":
		case !e.hostAccepted(r.Host):
			e.refuseStranger(w, r, commonv1.Code_CODE_HOST_REFUSED, "")
			return
		case len(r.Header["Origin"]) > 0 && !e.originAccepted(r.Header["Origin"]): // none where no browser sent it
			e.refuseStranger(w, r, commonv1.Code_CODE_ORIGIN_REFUSED, "")
			return
		}
		next.ServeHTTP(w, r)
	})
}

func (e *Edge) hostAccepted(hostport string) bool {
	host, _, err := net.SplitHostPort(hostport)
	if err != nil {
		host = hostport
	}
	host = strings.ToLower(strings.Trim(host, "[]"))
	return isLoopback(host) || slices.Contains(e.cfg.Hosts, host)
}

func (e *Edge) originAccepted(origins []string) bool {
	if len(origins) > 1 {
		return false
	}
	u, err := url.Parse(origins[0])
	if err != nil || u.Host == "" || u.Scheme == "" {
		return false // "null" among others
	}
	return slices.Contains(e.cfg.Origins, origins[0]) || isLoopback(strings.ToLower(u.Hostname()))
}

func isLoopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback()
}

// identified lets only agents with a live token through.
func (e *Edge) identified(next func(http.ResponseWriter, *http.Request, caller)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		secret, ok := bearer(r.Header["Authorization"])
		if !ok {
			e.unauthenticated(w, r, false)
			return
		}
		p, err := e.deps.Tokens.Lookup(secret)
		stale := errors.Is(err, authn.ErrTokensStale)
		switch {
		case stale && p == nil:
			e.refuseStranger(w, r, commonv1.Code_CODE_POLICY_UNAVAILABLE, "")
		case err != nil && !stale:
			e.unauthenticated(w, r, true)
		case p.GetRole() != authv1.TokenRole_TOKEN_ROLE_AGENT:
			e.refuseStranger(w, r, commonv1.Code_CODE_FORBIDDEN, "")
		case !hasRoom(r.Context(), p):
			w.Header().Set("Connection", "close")
			e.refuseHTTP(w, r, caller{principal: p}, tooManyConnections())
		default:
			revoked := e.recheck(r.Context(), secret, p)
			next(w, r, caller{principal: p, stale: stale && revoked(), revoked: revoked})
		}
	}
}

// recheck returns a function that reports whether a token stands for its principal no longer, or whether that is not
// known. The function waits for a policy service that is busy, until ctx ends.
func (e *Edge) recheck(ctx context.Context, secret string, was *identityv1.Principal) func() bool {
	return func() bool {
		is, err := e.deps.Tokens.Await(ctx, secret)
		return err != nil || is != was && !proto.Equal(is, was)
	}
}

// bearer reads the one bearer token of a request (RFC 6750, section 2.1).
func bearer(lines []string) (string, bool) {
	if len(lines) != 1 {
		return "", false
	}
	scheme, secret, ok := strings.Cut(lines[0], " ")
	return secret, ok && strings.EqualFold(scheme, "bearer") && secret != ""
}

const (
	// noToken and wrongToken are what a client is told that sent no bearer token, and one that is not known.
	noToken    = "the request has no bearer token, or more than one: send the header `Authorization: Bearer TOKEN`, with an agent's token of this mesh."
	wrongToken = "the bearer token that was sent is none of this mesh's, or it was taken away: ask who runs the mesh for an agent's token."
)

// unauthenticated refuses a request without a token, or with one that is not known, which RFC 6750, section 3, tells
// apart: only the second has an error code.
func (e *Edge) unauthenticated(w http.ResponseWriter, r *http.Request, sent bool) {
	challenge, why := `Bearer realm="sluice"`, noToken
	if sent {
		challenge += `, error="invalid_token", error_description="the token is not known"`
		why = wrongToken
	}
	w.Header().Set("WWW-Authenticate", challenge)
	e.refuseStranger(w, r, commonv1.Code_CODE_UNAUTHENTICATED, why)
}

// refuseStranger refuses a request before its caller is identified. It is counted, not recorded one by one: callers
// without an identity must not fill the journal.
func (e *Edge) refuseStranger(w http.ResponseWriter, r *http.Request, code commonv1.Code, message string) {
	e.deps.Admission(enum.Given(code), e.peer(r))
	e.deps.Meters.Refused(r.Context(), code)
	newSSE(w, nil).answer((&exchange{Edge: e}).refused(r.Context(), refusal.ProtocolError(code, message)))
}
