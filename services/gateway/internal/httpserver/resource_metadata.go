package httpserver

import (
	"net/http"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"

	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/internal/issuer"
)

// metadataPath is the prefix of the paths at which the metadata of protected resources is served (RFC 9728, section 3).
// The path of the resource is appended to it.
const metadataPath = "/.well-known/oauth-protected-resource"

// MetadataPatterns returns the patterns of the paths at which [Server.ResourceMetadata] is served.
func MetadataPatterns() []string {
	return []string{metadataPath + "/mcp", metadataPath + "/mcp/{server}"}
}

// resourceMetadata is the metadata of a protected resource (RFC 9728, section 2).
type resourceMetadata struct {
	Resource             string   `json:"resource"`
	AuthorizationServers []string `json:"authorization_servers"`
	Scopes               []string `json:"scopes_supported,omitempty"`
	BearerMethods        []string `json:"bearer_methods_supported"`
}

// ResourceMetadata serves the metadata of the mesh, or of one of its servers, as a protected resource. It serves
// metadata for every valid server name, whether or not the server exists. If no issuers or no public URL are
// configured, it responds with the status 404.
func (s *Server) ResourceMetadata(w http.ResponseWriter, r *http.Request) {
	h, issuers := w.Header(), s.deps.Tokens.IssuerURLs()
	h.Set("Access-Control-Allow-Origin", "*") // the metadata is public
	if server := r.PathValue("server"); server != "" && !issuer.IsServerName(server) {
		http.NotFound(w, r)
		return
	}
	if s.cfg.Resource == "" || len(issuers) == 0 {
		http.Error(w, "this mesh accepts no tokens of issuers: set public_url and auth.issuers", http.StatusNotFound)
		return
	}
	out := resourceMetadata{
		Resource: s.resourceOf(r.PathValue("server")), AuthorizationServers: issuers,
		Scopes: s.deps.Scopes(r.PathValue("server")), BearerMethods: []string{"header"},
	}
	body, err := json.Marshal(out)
	if err != nil {
		s.deps.Log.ErrorContext(r.Context(), "the metadata could not be written", "error", err)
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "max-age=300")
	_, _ = w.Write(body) // the client may have disconnected
}

// resourceOf returns the URI of a server as a protected resource. If the name is empty, it returns the URI of all
// servers.
func (s *Server) resourceOf(server string) string {
	if server == "" {
		return s.cfg.Resource
	}
	return s.cfg.Resource + "/" + server
}

// challenge returns the challenge of a response with the status 401 (RFC 6750, section 3). If JWTs of issuers are
// accepted, it contains the scopes that policy rules require for the server, so that the client requests them when it
// signs in.
func (s *Server) challenge(r *http.Request) string {
	challenge := resourceChallenge + s.metadataParameter(r)
	if !s.acceptsJWT(r) {
		return challenge
	}
	return challenge + scopeParameter(s.deps.Scopes(serverOf(r)))
}

const resourceChallenge = `Bearer realm="sluice"`

// StepsUp reports whether the gateway answers a refused call with the status 403, so that the caller's client signs in
// again with more scopes. The gateway does so only for the configured clients, because some other clients treat this
// status as a failure.
func (s *Server) StepsUp(c Caller, refused *refusal.Refusal) bool {
	return refused != nil && refused.Scopes != nil && c.Principal.GetClient() != "" &&
		slices.Contains(s.cfg.StepUpClients, c.Principal.GetClient())
}

const (
	// maxChallengeScopes is the maximum total length of the scopes in a challenge, in bytes. Scopes that the call does
	// not need are omitted if they don't fit. All scopes that a policy can need fit.
	maxChallengeScopes = 4096
	// offlineAccess is the scope with which a client requests a refresh token. It says nothing about what the client may
	// do, so resources do not list it.
	offlineAccess = "offline_access"
)

// ScopeChallenge returns the challenge of a response with the status 403 to a call that needs more scopes (RFC 6750,
// section 3.1). Many clients request exactly the scopes of the challenge, so the challenge also contains the scopes of
// the caller's token. Otherwise the client's next token would lack them.
func (s *Server) ScopeChallenge(r *http.Request, c Caller, needed []string) string {
	scopes := withHeldScopes(needed, c.Principal.GetScopes())
	return resourceChallenge + `, error="insufficient_scope"` + scopeParameter(scopes) + s.metadataParameter(r)
}

// withHeldScopes returns the scopes that a call needs, followed by the other scopes of the caller's token. It omits
// scopes that do not fit, and texts that are no scopes, because a JWT can contain such texts.
func withHeldScopes(needed, held []string) []string {
	out, size := slices.Clone(needed), len(strings.Join(needed, " "))
	for _, scope := range held {
		if slices.Contains(out, scope) || scope == offlineAccess || !isScope(scope) || size+1+len(scope) > maxChallengeScopes {
			continue
		}
		out, size = append(out, scope), size+1+len(scope)
	}
	return out
}

// isScope reports whether a text is a scope (RFC 6749, section 3.3).
func isScope(text string) bool {
	return text != "" && !strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' || r == '"' || r == '\\' })
}

// scopeParameter returns the parameter `scope` of a challenge. A scope contains no character that must be escaped (RFC
// 6749, section 3.3).
func scopeParameter(scopes []string) string {
	if len(scopes) == 0 {
		return ""
	}
	return `, scope="` + strings.Join(scopes, " ") + `"`
}

// metadataParameter returns the parameter of a challenge that contains the URL of the resource's metadata (RFC 9728,
// section 5.1). It returns "" unless JWTs of issuers are accepted and the mesh has a public URL.
func (s *Server) metadataParameter(r *http.Request) string {
	if s.cfg.Resource == "" || !s.acceptsJWT(r) {
		return ""
	}
	base := strings.TrimSuffix(s.cfg.Resource, "/mcp")
	path := strings.TrimPrefix(s.resourceOf(serverOf(r)), base)
	return `, resource_metadata="` + base + metadataPath + path + `"`
}

// acceptsJWT reports whether clients can send JWTs of issuers in requests to the path of r.
func (s *Server) acceptsJWT(r *http.Request) bool {
	return s.deps.Tokens.Issuers() > 0 && strings.HasPrefix(r.URL.Path, "/mcp")
}

// serverOf returns the name of the server in the path of a request. It returns "" if the path is that of all servers,
// or if the name is not valid. An invalid name could contain a quotation mark, which would end a quoted string in a
// challenge.
func serverOf(r *http.Request) string {
	if server := r.PathValue("server"); issuer.IsServerName(server) {
		return server
	}
	return ""
}
