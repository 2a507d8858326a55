package identity

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"slices"

	"github.com/sluice-mesh/sluice/services/internal/config"
	"github.com/sluice-mesh/sluice/services/internal/loopback"
)

// OAuthServer is a configured server at which the mesh signs in.
type OAuthServer struct {
	// URL is the MCP endpoint. CA contains certificate authorities in PEM that are trusted in addition to those of the
	// system. CA may be empty.
	URL, CA string
	// Proxy is the URL of the proxy for https requests to the server and to its authorization server. The URL can contain
	// credentials. If it is empty, the proxy is taken from the environment, if there is one.
	Proxy string
	// ClientID and ClientSecret identify a registered OAuth client. If ClientID is empty, the mesh registers a client.
	ClientID, ClientSecret string
	// Scopes are the scopes to request. If there are none, the mesh requests the scopes that the server names.
	Scopes []string
	// Issuer identifies the authorization server. If it is empty, the server's metadata name it.
	Issuer string
	// OmitResource is true if the parameter `resource` must not be sent.
	OmitResource bool
	// Prompt is the parameter `prompt` of the authorization request, or [config.PromptOmit]. If it is empty, the parameter
	// is `consent` if each person uses a separate account, or if a refresh token is requested.
	Prompt string
	// ForEachPerson is true if each person uses a separate account. Otherwise all callers use the same account.
	ForEachPerson bool
}

func (s OAuthServer) equal(other OAuthServer) bool {
	return s.URL == other.URL && s.CA == other.CA && s.Proxy == other.Proxy && s.ClientID == other.ClientID && s.ClientSecret == other.ClientSecret && s.Issuer == other.Issuer &&
		s.OmitResource == other.OmitResource && s.Prompt == other.Prompt && s.ForEachPerson == other.ForEachPerson && slices.Equal(s.Scopes, other.Scopes)
}

// proxyFor returns the proxy for a request, or nil if there is none. Requests to loopback addresses use no proxy, as in
// [http.ProxyFromEnvironment].
func (s *OAuthServer) proxyFor(req *http.Request) (*url.URL, error) {
	switch {
	case s.Proxy == "":
		return http.ProxyFromEnvironment(req)
	case req.URL.Scheme != "https" || loopback.Host(req.URL.Hostname()):
		return nil, nil //nolint:nilnil // no proxy, as in net/http
	default:
		return url.Parse(s.Proxy)
	}
}

// oauthServersOf returns the servers in a configuration at which the mesh signs in, by name. It reads the files of
// certificate authorities, and resolves the proxies and the secrets of the OAuth clients.
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
		one := OAuthServer{
			URL: server.HTTP.URL, ClientID: from.ClientID, ClientSecret: secret, Scopes: from.Scopes, Issuer: from.Issuer, OmitResource: from.Resource == "omit",
			Prompt: from.Prompt, ForEachPerson: server.Credentials.ForEachPerson(),
		}
		if one.Proxy, err = proxyOf(f, server.HTTP, env); err != nil {
			return nil, fmt.Errorf("servers.%s.http.proxy: %w", name, err)
		}
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

// proxyOf returns the proxy in the configuration of a server, or "" if the proxy is taken from the environment. The
// error contains no credentials.
func proxyOf(f *config.File, of *config.HTTPServer, env config.Env) (string, error) {
	if of.Proxy == config.ProxyEnv {
		return "", nil
	}
	text, err := of.Proxy.Resolve(f, env)
	if err != nil || text == "" {
		return "", err
	}
	if at, err := url.Parse(text); err != nil || at.Hostname() == "" || at.Scheme != "http" && at.Scheme != "https" {
		return "", errors.New("it is not the http or https URL of a proxy, or env")
	}
	return text, nil
}
