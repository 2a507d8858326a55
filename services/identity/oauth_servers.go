package identity

import (
	"fmt"
	"os"
	"slices"

	"github.com/sluice-mesh/sluice/services/internal/config"
)

// OAuthServer is a configured server at which the mesh signs in.
type OAuthServer struct {
	// URL is the MCP endpoint. CA contains certificate authorities in PEM that are trusted in addition to those of the
	// system. CA may be empty.
	URL, CA string
	// ClientID and ClientSecret identify a registered OAuth client. If ClientID is empty, the mesh registers a client.
	ClientID, ClientSecret string
	// Scopes are the scopes to request. If there are none, the mesh requests the scopes that the server names.
	Scopes []string
	// Issuer identifies the authorization server. If it is empty, the server's metadata name it.
	Issuer string
	// OmitResource is true if the parameter `resource` must not be sent.
	OmitResource bool
}

func (s OAuthServer) equal(other OAuthServer) bool {
	return s.URL == other.URL && s.CA == other.CA && s.ClientID == other.ClientID && s.ClientSecret == other.ClientSecret && s.Issuer == other.Issuer &&
		s.OmitResource == other.OmitResource && slices.Equal(s.Scopes, other.Scopes)
}

// oauthServersOf returns the configured servers at which the mesh signs in, by name. It reads the files with their
// certificate authorities, and resolves the secrets of OAuth clients.
func oauthServersOf(f *config.File, env config.Env) (map[string]OAuthServer, error) {
	out := make(map[string]OAuthServer)
	for name, server := range f.Servers {
		if server.Credentials == nil {
			continue
		}
		from := server.Credentials.OAuth
		secret, err := from.ClientSecret.Resolve(f, env)
		if err != nil {
			return nil, fmt.Errorf("servers.%s.credentials.oauth.client_secret: %w", name, err)
		}
		one := OAuthServer{URL: server.HTTP.URL, ClientID: from.ClientID, ClientSecret: secret, Scopes: from.Scopes, Issuer: from.Issuer, OmitResource: from.Resource == "omit"}
		if server.HTTP.CA != "" {
			raw, err := os.ReadFile(f.Path(server.HTTP.CA))
			if err != nil {
				return nil, fmt.Errorf("servers.%s.http.ca: %w", name, err)
			}
			one.CA = string(raw)
		}
		out[name] = one
	}
	return out, nil
}
