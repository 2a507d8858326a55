package identity_test

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
)

// oauthServer is an MCP server that requires OAuth, together with its authorization server, which rotates refresh tokens.
// A refresh token that is used twice ends the grant, as RFC 9700, section 4.14.2, recommends. It is safe for concurrent
// use.
type oauthServer struct {
	*httptest.Server

	mu sync.Mutex
	// resource and metadata replace or add members of the metadata of the server and of the authorization server.
	resource, metadata map[string]any
	// tokenStatus and errorCode are the answer of the token endpoint. If both are zero, it issues tokens, which expire
	// after the given number of seconds.
	tokenStatus int
	errorCode   string
	expiresIn   int
	// withoutRefresh is true if no refresh tokens are issued.
	withoutRefresh bool
	// secret is the client secret that the token endpoint accepts. If it is empty, clients are public.
	secret string
	// hold is called before a refresh is answered. It may be nil.
	hold func()
	// challenge is the PKCE challenge, and nonce the parameter of the same name, which authorize sets.
	challenge, nonce string
	// idToken replaces or adds claims of the ID tokens. If it is nil, there are none.
	idToken map[string]any
	// issued is the number of issued tokens. grants contains the grant of each issued refresh token, and valid the refresh
	// token of each grant that can be used. A grant is known by the number of its first token.
	issued int
	grants map[string]int
	valid  map[int]string
	// registrations and requests are the requests to the registration and token endpoints.
	registrations []map[string]any
	requests      []url.Values
}

func startOAuthServer(t *testing.T) *oauthServer {
	t.Helper()
	s := newOAuthServer()
	s.Start()
	t.Cleanup(s.Close)
	return s
}

// newOAuthServer returns a server that the caller must start and close.
func newOAuthServer() *oauthServer {
	s := &oauthServer{expiresIn: 3600, grants: make(map[string]int), valid: make(map[int]string)}
	mux := http.NewServeMux()
	mux.HandleFunc("/mcp", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer resource_metadata="%s/resource", scope="read"`, s.URL))
		w.WriteHeader(http.StatusUnauthorized)
	})
	mux.HandleFunc("/resource", func(w http.ResponseWriter, _ *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		out := map[string]any{"resource": s.URL + "/mcp", "authorization_servers": []string{s.URL}}
		merge(out, s.resource)
		write(w, out)
	})
	mux.HandleFunc("/.well-known/oauth-authorization-server", func(w http.ResponseWriter, _ *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		out := map[string]any{
			"issuer": s.URL, "authorization_endpoint": s.URL + "/authorize", "token_endpoint": s.URL + "/token", "registration_endpoint": s.URL + "/register",
			"code_challenge_methods_supported": []string{"S256"}, "token_endpoint_auth_methods_supported": []string{"none", "client_secret_basic"},
			"scopes_supported": []string{"read", "offline_access"}, "authorization_response_iss_parameter_supported": true,
		}
		merge(out, s.metadata)
		write(w, out)
	})
	mux.HandleFunc("POST /register", func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		in := make(map[string]any)
		if err := json.UnmarshalRead(r.Body, &in); err != nil {
			fail(w, "invalid_client_metadata")
			return
		}
		s.registrations = append(s.registrations, in)
		in["client_id"] = fmt.Sprintf("client-%d", len(s.registrations))
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		_ = json.MarshalWrite(w, in) // the client notices if the response is not complete
	})
	mux.HandleFunc("POST /token", s.serveToken)
	s.Server = httptest.NewUnstartedServer(mux)
	return s
}

// set changes the server.
func (s *oauthServer) set(change func(*oauthServer)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(s)
}

// authorize acts as the operator in the browser, and returns the code.
func (s *oauthServer) authorize(page string) string {
	at, err := url.Parse(page)
	if err != nil {
		panic(err)
	}
	s.set(func(s *oauthServer) {
		s.challenge, s.nonce = at.Query().Get("code_challenge"), at.Query().Get("nonce")
	})
	return "code"
}

func (s *oauthServer) serveToken(w http.ResponseWriter, r *http.Request) {
	_ = r.ParseForm() // an unreadable form is empty
	isRefresh := r.PostForm.Get("grant_type") == "refresh_token"
	s.mu.Lock()
	hold := s.hold
	s.mu.Unlock()
	if hold != nil && isRefresh {
		hold()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = append(s.requests, r.PostForm)
	sum := sha256.Sum256([]byte(r.PostForm.Get("code_verifier")))
	isProven := base64.RawURLEncoding.EncodeToString(sum[:]) == s.challenge
	if _, secret, _ := r.BasicAuth(); s.secret != "" && secret != s.secret {
		fail(w, "invalid_client")
		return
	}
	used := r.PostForm.Get("refresh_token")
	grant := s.grants[used]
	if s.valid[grant] != used {
		delete(s.valid, grant) // it was used twice
	}
	switch {
	case s.tokenStatus != 0:
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(s.tokenStatus)
		_, _ = w.Write([]byte(`{"error":"too_many_requests"}`)) // the client notices if the response is not complete
		return
	case s.errorCode != "":
		fail(w, s.errorCode)
		return
	case isRefresh && s.valid[grant] == "", !isRefresh && (r.PostForm.Get("code") != "code" || !isProven), r.PostForm.Get("resource") != s.URL+"/mcp":
		fail(w, "invalid_grant")
		return
	}
	if s.issued++; !isRefresh {
		grant = s.issued
	}
	refresh := fmt.Sprintf("refresh-token-%d", s.issued)
	s.grants[refresh], s.valid[grant] = grant, refresh
	out := map[string]any{"access_token": fmt.Sprintf("access-token-%d", s.issued), "token_type": "bearer", "expires_in": s.expiresIn, "scope": "read"}
	if !s.withoutRefresh {
		out["refresh_token"] = refresh
	}
	if s.idToken != nil {
		claims := map[string]any{"iss": s.URL, "aud": r.PostForm.Get("client_id"), "exp": time.Now().Add(time.Hour).Unix(), "nonce": s.nonce, "sub": "248289761001"}
		merge(claims, s.idToken)
		out["id_token"] = unsigned(claims)
	}
	write(w, out)
}

// unsigned returns a JWT whose signature is not valid.
func unsigned(claims map[string]any) string {
	payload, err := json.Marshal(claims)
	if err != nil {
		panic(err)
	}
	encode := base64.RawURLEncoding.EncodeToString
	return encode([]byte(`{"alg":"RS256"}`)) + "." + encode(payload) + "." + encode([]byte("no signature"))
}

// refreshes returns the number of requests with a refresh token.
func (s *oauthServer) refreshes() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, form := range s.requests {
		if strings.HasPrefix(form.Get("grant_type"), "refresh") {
			n++
		}
	}
	return n
}
