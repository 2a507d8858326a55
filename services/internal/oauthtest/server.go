// Package oauthtest simulates an MCP server that requires OAuth, and its authorization server, which rotates refresh
// tokens. There is no network, so tests can use the package in a bubble of testing/synctest.
package oauthtest

import (
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
)

const (
	origin = "https://wiki.example.com"
	// URL is the MCP endpoint of the server.
	URL = origin + "/mcp"
	// ErrLimited is the status of a server that receives too many requests. Its response has the header Retry-After.
	ErrLimited = StatusError(http.StatusTooManyRequests)
	// ErrAway is the status of a server that is unavailable.
	ErrAway = StatusError(http.StatusServiceUnavailable)
)

// ErrClosed means that the connection was closed before the response arrived.
var ErrClosed = errors.New("the connection was closed")

// A StatusError is the HTTP status with which the token endpoint answers instead of issuing tokens.
type StatusError int

// Error implements error.
func (e StatusError) Error() string { return http.StatusText(int(e)) }

// Stage is a point in the processing of a refresh.
type Stage int

const (
	// Received means that a refresh token has arrived, and that the server has not used it.
	Received Stage = iota + 1
	// Processed means that the server has used the refresh token, and that the response is not sent.
	Processed
)

// A Hook is called at each stage of each refresh. If it returns a [StatusError], the server answers with this status.
// If it returns another error, the connection is closed. Hook may block.
type Hook func(at Stage) error

// Use is the use of a refresh token.
type Use struct {
	// Token is the refresh token. Time is when it was used.
	Token string
	Time  time.Time
	// IsReuse is true if the token had been used before. IsRefused is true if the grant had ended, or has ended because
	// of this use.
	IsReuse, IsRefused bool
}

// Server is an MCP server and its authorization server. Each refresh token is for a single use. If a refresh token is
// used again later than Grace after its first use, its grant ends, and all tokens of the grant are invalid (RFC 9700,
// section 4.14.2). A Server is safe for concurrent use. Its exported fields must not change after the first request.
type Server struct {
	// Life is the lifetime of access tokens. It must be a whole number of seconds.
	Life time.Duration
	// Grace is how long a used refresh token is accepted again.
	Grace time.Duration
	// EndsAccessTokens is true if the earlier access tokens of a grant end when it is refreshed.
	EndsAccessTokens bool
	// Now is the clock of the server. The default is time.Now.
	Now func() time.Time

	mu        sync.Mutex
	challenge string
	codes     int
	logins    int
	issued    int
	access    map[string]*accessToken
	refresh   map[string]*refreshToken
	uses      []Use
}

// grant is a sign-in of a person.
type grant struct{ ended bool }

type accessToken struct {
	of      *grant
	expires time.Time
}

type refreshToken struct {
	of *grant
	// used is the time of the first use. It is zero if the token was not used.
	used time.Time
}

// Authorize acts as the person in the browser. It returns the authorization code, which can be used once.
func (s *Server) Authorize(page string) (code string, err error) {
	at, err := url.Parse(page)
	if err != nil {
		return "", err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.codes++
	s.challenge = at.Query().Get("code_challenge")
	return fmt.Sprintf("code-%d", s.codes), nil
}

func (s *Server) now() time.Time {
	if s.Now != nil {
		return s.Now()
	}
	return time.Now()
}

// Logins returns how many authorization codes were exchanged for tokens.
func (s *Server) Logins() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.logins
}

// Uses returns the uses of all refresh tokens, in their order.
func (s *Server) Uses() []Use {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Use(nil), s.uses...)
}

// Accepts reports whether the MCP server accepts an access token now.
func (s *Server) Accepts(token string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	found := s.access[token]
	return found != nil && !found.of.ended && s.now().Before(found.expires)
}

// Transport returns a transport for requests to the server. hook may be nil.
func (s *Server) Transport(hook Hook) http.RoundTripper {
	if hook == nil {
		hook = func(Stage) error { return nil }
	}
	return transport{s, hook}
}

type transport struct {
	server *Server
	hook   Hook
}

// RoundTrip implements [http.RoundTripper].
func (t transport) RoundTrip(req *http.Request) (*http.Response, error) {
	if err := req.Context().Err(); err != nil {
		return nil, err
	}
	answer := httptest.NewRecorder()
	err := t.serve(answer, req)
	if status, ok := errors.AsType[StatusError](err); ok {
		answer = httptest.NewRecorder()
		answer.Header().Set("Retry-After", "30")
		answer.WriteHeader(int(status))
		err = nil
	}
	if err != nil {
		return nil, err
	}
	return answer.Result(), nil
}

func (t transport) serve(w http.ResponseWriter, req *http.Request) error {
	if req.URL.Scheme+"://"+req.URL.Host != origin {
		return fmt.Errorf("a request is for %s", req.URL)
	}
	switch req.URL.Path {
	case "/mcp":
		w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer resource_metadata=%q, scope="read"`, origin+"/resource"))
		w.WriteHeader(http.StatusUnauthorized)
	case "/resource":
		answer(w, http.StatusOK, map[string]any{"resource": URL, "authorization_servers": []string{origin}})
	case "/.well-known/oauth-authorization-server":
		answer(w, http.StatusOK, map[string]any{
			"issuer": origin, "authorization_endpoint": origin + "/authorize", "token_endpoint": origin + "/token", "registration_endpoint": origin + "/register",
			"code_challenge_methods_supported": []string{"S256"}, "token_endpoint_auth_methods_supported": []string{"none"}, "scopes_supported": []string{"read", "offline_access"},
		})
	case "/register":
		in := make(map[string]any)
		if err := json.UnmarshalRead(req.Body, &in); err != nil {
			return err
		}
		in["client_id"] = "client-1"
		answer(w, http.StatusCreated, in)
	case "/token":
		return t.serveToken(w, req)
	default:
		w.WriteHeader(http.StatusNotFound)
	}
	return nil
}

func (t transport) serveToken(w http.ResponseWriter, req *http.Request) error {
	if err := req.ParseForm(); err != nil {
		return err
	}
	used, isRefresh := req.PostForm.Get("refresh_token"), req.PostForm.Get("grant_type") == "refresh_token"
	if !isRefresh {
		t.server.exchange(w, req.PostForm)
		return nil
	}
	if err := t.hook(Received); err != nil {
		return err
	}
	t.server.rotate(w, used)
	return t.hook(Processed)
}

// exchange answers a request with an authorization code.
func (s *Server) exchange(w http.ResponseWriter, form url.Values) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sum := sha256.Sum256([]byte(form.Get("code_verifier")))
	isProven := base64.RawURLEncoding.EncodeToString(sum[:]) == s.challenge
	if s.challenge = ""; !isProven || form.Get("code") != fmt.Sprintf("code-%d", s.codes) {
		refuse(w)
		return
	}
	s.logins++
	s.issue(w, new(grant))
}

// rotate answers a request with a refresh token.
func (s *Server) rotate(w http.ResponseWriter, token string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, found := s.now(), s.refresh[token]
	use := Use{Token: token, Time: now, IsReuse: found != nil && !found.used.IsZero()}
	switch {
	case found == nil:
		use.IsRefused = true
	case use.IsReuse && now.Sub(found.used) > s.Grace:
		found.of.ended = true
	case !use.IsReuse:
		found.used = now
	}
	use.IsRefused = found == nil || found.of.ended
	if s.uses = append(s.uses, use); use.IsRefused {
		refuse(w)
		return
	}
	s.issue(w, found.of)
}

// issue answers with new tokens of a grant. The caller holds the lock.
func (s *Server) issue(w http.ResponseWriter, of *grant) {
	if s.access == nil {
		s.access, s.refresh = make(map[string]*accessToken), make(map[string]*refreshToken)
	}
	s.issued++
	for _, old := range s.access {
		if s.EndsAccessTokens && old.of == of {
			old.expires = time.Time{}
		}
	}
	access, refresh := fmt.Sprintf("access-token-%d", s.issued), fmt.Sprintf("refresh-token-%d", s.issued)
	s.access[access] = &accessToken{of: of, expires: s.now().Add(s.Life)}
	s.refresh[refresh] = &refreshToken{of: of}
	answer(w, http.StatusOK, map[string]any{
		"access_token": access, "refresh_token": refresh, "token_type": "Bearer", "expires_in": int(s.Life.Seconds()), "scope": "read",
	})
}

func refuse(w http.ResponseWriter) {
	answer(w, http.StatusBadRequest, map[string]any{"error": "invalid_grant"})
}

func answer(w http.ResponseWriter, status int, body map[string]any) {
	text := new(strings.Builder)
	if err := json.MarshalWrite(text, body); err != nil {
		panic(err) // the values can always be encoded
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(text.String())) // a recorder never fails
}
