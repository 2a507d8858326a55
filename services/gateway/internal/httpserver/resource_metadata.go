package httpserver

import (
	"net/http"
	"strings"

	"github.com/go-json-experiment/json"

	"github.com/sluice-mesh/sluice/services/internal/issuer"
)

// metadataPath is the path of the metadata of protected resources (RFC 9728, section 3). The path of the resource
// follows.
const metadataPath = "/.well-known/oauth-protected-resource"

// MetadataPatterns are the patterns of the paths at which [Server.ResourceMetadata] is served.
func MetadataPatterns() []string {
	return []string{metadataPath + "/mcp", metadataPath + "/mcp/{server}"}
}

// resourceMetadata is the metadata of a protected resource (RFC 9728, section 2).
type resourceMetadata struct {
	Resource             string   `json:"resource"`
	AuthorizationServers []string `json:"authorization_servers"`
	BearerMethods        []string `json:"bearer_methods_supported"`
}

// ResourceMetadata serves the metadata of the mesh, or of one of its servers, as a protected resource. Each server name
// has metadata, so a client can't find out which servers exist. Without issuers or a public URL, there is no metadata.
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
	out := resourceMetadata{Resource: s.resourceOf(r.PathValue("server")), AuthorizationServers: issuers, BearerMethods: []string{"header"}}
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

// challenge returns the challenge of a response with the status 401 (RFC 6750, section 3). It contains the URL of the
// resource's metadata if JWTs of issuers are accepted and the mesh has a public URL (RFC 9728, section 5.1).
func (s *Server) challenge(r *http.Request) string {
	const challenge = `Bearer realm="sluice"`
	if s.cfg.Resource == "" || s.deps.Tokens.Issuers() == 0 || !strings.HasPrefix(r.URL.Path, "/mcp") {
		return challenge
	}
	base := strings.TrimSuffix(s.cfg.Resource, "/mcp")
	server := r.PathValue("server")
	if !issuer.IsServerName(server) { // other names could end the quoted string below
		server = ""
	}
	path := strings.TrimPrefix(s.resourceOf(server), base)
	return challenge + `, resource_metadata="` + base + metadataPath + path + `"`
}
