package identity

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/oauthex"
	"golang.org/x/oauth2"

	"github.com/sluice-mesh/sluice/services/identity/internal/issuerkeys"
	"github.com/sluice-mesh/sluice/services/internal/loopback"
)

const (
	// authorizationTimeout limits how long one request to a server or to its authorization server takes.
	authorizationTimeout = 10 * time.Second
	// maxAskedScopes is the maximum length, in bytes, of the scopes that a server names in its challenge or in its
	// metadata.
	maxAskedScopes = 2048
	// offlineAccess is the scope that requests a refresh token (OpenID Connect Core, section 11).
	offlineAccess = "offline_access"
	// openID is the scope for an ID token (OpenID Connect Core, section 3.1.2.1).
	openID = "openid"
	// clientName is the name with which the mesh registers itself at authorization servers.
	clientName = "Sluice"
)

var (
	// errServerUnusable means that the mesh can't sign in at a server, because of a response from the server or from its
	// authorization server.
	errServerUnusable = errors.New("the mesh can't sign in at the server")
	// errServerAway means that a server or its authorization server has not responded.
	errServerAway = errors.New("the server or its authorization server has not answered")
)

// oauthClient contains the data of the OAuth client with which the mesh signs in at one server. It is encrypted before
// it is stored.
type oauthClient struct {
	// Server is the URL of the MCP server. Access tokens are sent only to this URL.
	Server string `json:"server"`
	// Issuer identifies the authorization server.
	Issuer string `json:"issuer"`
	// AuthorizationEndpoint and TokenEndpoint are URLs of the authorization server.
	AuthorizationEndpoint string `json:"authorizationEndpoint"`
	TokenEndpoint         string `json:"tokenEndpoint"`
	// SendsIssuer is true if authorization responses contain the parameter `iss`.
	SendsIssuer bool `json:"sendsIssuer"`
	// ClientID, ClientSecret and InHeader say how the client authenticates. InHeader is true if the secret is sent in a
	// header.
	ClientID     string `json:"clientId"`
	ClientSecret string `json:"clientSecret,omitzero"`
	InHeader     bool   `json:"inHeader,omitzero"`
	// Configured is true if the client is in the configuration, and false if the mesh has registered it.
	Configured bool `json:"configured,omitzero"`
	// Resource is the parameter `resource` (RFC 8707), or "" if it is not sent.
	Resource string `json:"resource,omitzero"`
	// Scopes are the requested scopes.
	Scopes []string `json:"scopes,omitempty"`
}

func (c *oauthClient) config(redirect string) *oauth2.Config {
	style := oauth2.AuthStyleInParams
	if c.InHeader && c.ClientSecret != "" {
		style = oauth2.AuthStyleInHeader
	}
	return &oauth2.Config{
		ClientID: c.ClientID, ClientSecret: c.ClientSecret, RedirectURL: redirect, Scopes: c.Scopes,
		Endpoint: oauth2.Endpoint{AuthURL: c.AuthorizationEndpoint, TokenURL: c.TokenEndpoint, AuthStyle: style},
	}
}

// refreshRefusal returns the error that a refused refresh wraps. If the authorization server has refused the secret of
// a configured client, it has not used the refresh token (RFC 6749, section 5.2), so the refresh can succeed with
// another secret.
func (c *oauthClient) refreshRefusal(err error) error {
	if answer, ok := errors.AsType[*oauth2.RetrieveError](err); ok && c.Configured && answer.ErrorCode == "invalid_client" {
		return errClientRefused
	}
	return errLoginRequired
}

// requestsIDToken reports whether the authorization server may issue an ID token.
func (c *oauthClient) requestsIDToken() bool { return slices.Contains(c.Scopes, openID) }

// authorizationURL returns the page on which the person signs in. The argument prompt is a parameter of the request,
// which is omitted if it is empty.
func (a *attempt) authorizationURL(state, prompt string) string {
	options := append(a.Client.resourceOption(), oauth2.S256ChallengeOption(a.Verifier))
	for name, value := range map[string]string{"prompt": prompt, "nonce": a.Nonce} {
		if value != "" {
			options = append(options, oauth2.SetAuthURLParam(name, value))
		}
	}
	return a.Client.config(a.Redirect).AuthCodeURL(state, options...)
}

// resourceOption returns the parameter `resource` of a request.
func (c *oauthClient) resourceOption() []oauth2.AuthCodeOption {
	if c.Resource == "" {
		return nil
	}
	return []oauth2.AuthCodeOption{oauth2.SetAuthURLParam("resource", c.Resource)}
}

// update sets the current secret of a stored client. It returns an error if the configuration has a different client or
// authorization server than at the time of the sign-in, because tokens of one client can't be refreshed by another
// client.
func (s *OAuthServer) update(client *oauthClient) error {
	const slash = "/" // some servers name the issuer with a trailing slash, and others without
	switch {
	case s.Issuer != "" && strings.TrimSuffix(s.Issuer, slash) != strings.TrimSuffix(client.Issuer, slash):
		return fmt.Errorf("it was connected at the authorization server %s, but the configuration names %s now (credentials.oauth.issuer)", client.Issuer, s.Issuer)
	case s.ClientID != "" && s.ClientID != client.ClientID:
		return errors.New("it was connected with another OAuth client than the configuration names now (credentials.oauth.client_id)")
	case s.ClientID == "" && client.Configured:
		return errors.New("it was connected with the OAuth client that the configuration does not name any more (credentials.oauth.client_id)")
	case s.ClientID != "":
		client.ClientSecret, client.Configured = s.ClientSecret, true
	}
	return nil
}

// newOAuthClient returns an OAuth client for a server. It discovers the authorization server of the server, and
// registers a client there if none is configured. Its requests use the given HTTP client, whose idle connections it
// closes.
func newOAuthClient(ctx context.Context, client *http.Client, of OAuthServer, redirect string) (*oauthClient, error) {
	defer client.CloseIdleConnections()
	challenge, err := of.challenge(ctx, client)
	if err != nil {
		return nil, err
	}
	resource, err := of.resource(ctx, client, challenge)
	if err != nil {
		return nil, err
	}
	server, err := of.authorizationServer(ctx, client, resource)
	if err != nil {
		return nil, err
	}
	out := &oauthClient{
		Server: of.URL, Issuer: server.Issuer, AuthorizationEndpoint: server.AuthorizationEndpoint, TokenEndpoint: server.TokenEndpoint,
		SendsIssuer: server.AuthorizationResponseIssParameterSupported, Scopes: of.scopes(challenge, resource),
	}
	if len(of.Scopes) == 0 && slices.Contains(server.ScopesSupported, offlineAccess) && !slices.Contains(out.Scopes, offlineAccess) {
		out.Scopes = append(slices.Clone(out.Scopes), offlineAccess)
	}
	if !of.OmitResource {
		out.Resource = resource.Resource
	}
	return out, of.register(ctx, client, server, out, redirect)
}

// httpClient returns a client for requests to the server and to its authorization server. The client follows no
// redirects. It connects to loopback addresses only if the server is on this machine, or if the address is that of a
// proxy. Otherwise, the server's metadata could make the mesh send requests to services that only this machine can
// reach.
func (s *OAuthServer) httpClient() (*http.Client, error) {
	cas, err := x509.SystemCertPool()
	if err != nil {
		return nil, fmt.Errorf("read the certificate authorities of the system: %w", err)
	}
	if s.CA != "" && !cas.AppendCertsFromPEM([]byte(s.CA)) {
		return nil, fmt.Errorf("%w: the file of its certificate authorities (http.ca) contains no certificate", errServerUnusable)
	}
	at, err := url.Parse(s.URL)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errServerUnusable, err)
	}
	var proxies sync.Map // the addresses of proxies, which may be on loopback because an operator has chosen them
	findProxy := func(req *http.Request) (*url.URL, error) {
		proxy, err := s.proxyFor(req)
		if err == nil && proxy != nil {
			proxies.Store(proxyAddress(proxy), true)
		}
		return proxy, err
	}
	dial := func(ctx context.Context, network, address string) (net.Conn, error) {
		_, isProxy := proxies.Load(address)
		mayBeLoopback := isProxy || loopback.Host(at.Hostname())
		dialer := &net.Dialer{Timeout: authorizationTimeout, Control: func(_, address string, _ syscall.RawConn) error {
			return checkDial(address, mayBeLoopback)
		}}
		return dialer.DialContext(ctx, network, address)
	}
	transport := &http.Transport{
		Proxy: findProxy, DialContext: dial, TLSClientConfig: &tls.Config{RootCAs: cas, MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout: authorizationTimeout, ResponseHeaderTimeout: authorizationTimeout, ForceAttemptHTTP2: true,
	}
	refuseRedirect := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &http.Client{Transport: transport, CheckRedirect: refuseRedirect, Timeout: authorizationTimeout}, nil
}

// proxyAddress returns the address at which net/http dials a proxy.
func proxyAddress(proxy *url.URL) string {
	ports := map[string]string{"http": "80", "https": "443", "socks5": "1080", "socks5h": "1080"}
	return net.JoinHostPort(proxy.Hostname(), cmp.Or(proxy.Port(), ports[proxy.Scheme]))
}

// checkDial refuses addresses that no server or authorization server has. These are link-local, multicast and
// unspecified addresses, because clouds offer credentials at a link-local address. Loopback addresses are refused
// unless mayBeLoopback is true.
func checkDial(address string, mayBeLoopback bool) error {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("%w: %w", errServerUnusable, err)
	}
	ip := at.Addr().Unmap()
	if ip.IsUnspecified() || ip.IsMulticast() || ip.IsLinkLocalUnicast() || ip.IsLoopback() && !mayBeLoopback {
		return fmt.Errorf("%w: it names the address %s, which is a link-local, multicast, unspecified or loopback address", errServerUnusable, ip)
	}
	return nil
}

// challenge sends a request without a token to the server, and returns the parameters of `WWW-Authenticate: Bearer` in
// the response. The result is empty if the response has no such header.
func (s *OAuthServer) challenge(ctx context.Context, client *http.Client) (map[string]string, error) {
	const initialize = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"sluice","version":"1"}}}`
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL, strings.NewReader(initialize))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errServerUnusable, err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	resp, err := client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errServerAway, err)
	}
	defer resp.Body.Close() //nolint:errcheck // the body is not read
	if resp.StatusCode >= http.StatusInternalServerError || resp.StatusCode == http.StatusTooManyRequests {
		return nil, fmt.Errorf("%w: the server has answered %s", errServerAway, resp.Status)
	}
	challenges, err := oauthex.ParseWWWAuthenticate(resp.Header.Values("WWW-Authenticate"))
	if err != nil {
		return nil, fmt.Errorf("%w: the header WWW-Authenticate of its answer %d can't be read", errServerUnusable, resp.StatusCode)
	}
	for _, one := range challenges {
		if one.Scheme == "bearer" {
			return one.Params, nil
		}
	}
	return nil, nil //nolint:nilnil // a server without a challenge may have metadata at a well-known address
}

// resource returns the metadata of the server as a protected resource (RFC 9728). A server that implements MCP
// 2025-03-26 has no such metadata, and is its own authorization server.
func (s *OAuthServer) resource(ctx context.Context, client *http.Client, challenge map[string]string) (*oauthex.ProtectedResourceMetadata, error) {
	at, err := url.Parse(s.URL)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errServerUnusable, err)
	}
	root := at.Scheme + "://" + at.Host
	places := []string{root + "/.well-known/oauth-protected-resource" + at.EscapedPath(), root + "/.well-known/oauth-protected-resource"}
	if named := challenge["resource_metadata"]; named != "" {
		places = append([]string{named}, places...)
	}
	var problems []error
	for _, place := range places {
		// Some servers use their origin as the resource, instead of their MCP endpoint.
		for _, resource := range []string{s.URL, root, root + "/"} {
			if err := s.checkURL(place); err != nil {
				problems = append(problems, err)
				break
			}
			metadata, err := oauthex.GetProtectedResourceMetadata(ctx, place, resource, client)
			if err == nil && len(metadata.AuthorizationServers) > 0 {
				return metadata, nil
			}
			problems = append(problems, err)
		}
	}
	if ctx.Err() != nil {
		return nil, fmt.Errorf("%w: %w", errServerAway, ctx.Err())
	}
	if challenge["resource_metadata"] != "" {
		return nil, fmt.Errorf("%w: its metadata (RFC 9728) can't be used: %w", errServerUnusable, errors.Join(problems...))
	}
	return &oauthex.ProtectedResourceMetadata{Resource: s.URL, AuthorizationServers: []string{root}}, nil
}

// authorizationServer returns the metadata of the server's authorization server.
func (s *OAuthServer) authorizationServer(ctx context.Context, client *http.Client, of *oauthex.ProtectedResourceMetadata) (*oauthex.AuthServerMeta, error) {
	issuer := of.AuthorizationServers[0]
	switch {
	case s.Issuer != "" && !slices.Contains(of.AuthorizationServers, s.Issuer):
		return nil, fmt.Errorf("%w: its authorization servers are %s, but not %s (credentials.oauth.issuer)", errServerUnusable, strings.Join(of.AuthorizationServers, ", "), s.Issuer)
	case s.Issuer != "":
		issuer = s.Issuer
	}
	if err := s.checkURL(issuer); err != nil {
		return nil, err
	}
	metadata, err := auth.GetAuthServerMetadata(ctx, issuer, client)
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, fmt.Errorf("%w: %w", errServerAway, err)
	case err != nil:
		return nil, fmt.Errorf("%w: the metadata of its authorization server %s can't be used: %w", errServerUnusable, issuer, err)
	case metadata == nil:
		return nil, fmt.Errorf("%w: its authorization server %s has no metadata (RFC 8414)", errServerUnusable, issuer)
	case !slices.Contains(metadata.CodeChallengeMethodsSupported, "S256"):
		return nil, fmt.Errorf("%w: its authorization server %s does not support PKCE with S256", errServerUnusable, issuer)
	}
	for name, at := range map[string]string{"authorization_endpoint": metadata.AuthorizationEndpoint, "token_endpoint": metadata.TokenEndpoint} {
		if err := s.checkURL(at); err != nil {
			return nil, fmt.Errorf("%s of the authorization server: %w", name, err)
		}
	}
	return metadata, nil
}

// checkURL refuses URLs that are not https. If the server is on loopback, http URLs on loopback are allowed.
func (s *OAuthServer) checkURL(text string) error {
	if err := issuerkeys.CheckURL(text); err != nil {
		return fmt.Errorf("%w: %w", errServerUnusable, err)
	}
	own, err1 := url.Parse(s.URL)
	at, err2 := url.Parse(text)
	if err := errors.Join(err1, err2); err != nil {
		return fmt.Errorf("%w: %w", errServerUnusable, err)
	}
	if loopback.Host(at.Hostname()) && !loopback.Host(own.Hostname()) {
		return fmt.Errorf("%w: it names the address %q on this machine", errServerUnusable, text)
	}
	return nil
}

// scopes returns the scopes to request (MCP 2025-11-25, Scope Selection Strategy). It returns the first of these that
// exists: the configured scopes, the scopes in the server's challenge, or the scopes in the server's metadata.
func (s *OAuthServer) scopes(challenge map[string]string, of *oauthex.ProtectedResourceMetadata) []string {
	asked := challenge["scope"]
	switch {
	case len(s.Scopes) > 0:
		return s.Scopes
	case asked != "" && len(asked) <= maxAskedScopes:
		return strings.Fields(asked)
	case len(strings.Join(of.ScopesSupported, " ")) <= maxAskedScopes:
		return of.ScopesSupported
	default:
		return nil
	}
}

// register sets the client's identifier and secret. If no client is configured, it registers one (RFC 7591).
func (s *OAuthServer) register(ctx context.Context, client *http.Client, at *oauthex.AuthServerMeta, out *oauthClient, redirect string) error {
	methods := at.TokenEndpointAuthMethodsSupported
	usesBasic := len(methods) == 0 || slices.Contains(methods, "client_secret_basic")
	if s.ClientID != "" {
		out.ClientID, out.ClientSecret, out.InHeader, out.Configured = s.ClientID, s.ClientSecret, usesBasic, true
		return nil
	}
	if at.RegistrationEndpoint == "" {
		return fmt.Errorf("%w: its authorization server %s registers no clients: register one there with the redirect URI http://127.0.0.1/callback, and set credentials.oauth.client_id", errServerUnusable, at.Issuer)
	}
	if err := s.checkURL(at.RegistrationEndpoint); err != nil {
		return fmt.Errorf("registration_endpoint of the authorization server: %w", err)
	}
	method := "none"
	if !slices.Contains(methods, method) {
		method = "client_secret_post"
		if usesBasic {
			method = "client_secret_basic"
		}
	}
	registered, err := oauthex.RegisterClient(ctx, at.RegistrationEndpoint, &oauthex.ClientRegistrationMetadata{
		RedirectURIs: []string{redirect}, ClientName: clientName, ApplicationType: "native", Scope: strings.Join(out.Scopes, " "),
		GrantTypes: []string{"authorization_code", "refresh_token"}, ResponseTypes: []string{"code"}, TokenEndpointAuthMethod: method,
	}, client)
	switch {
	case err != nil && ctx.Err() != nil:
		return fmt.Errorf("%w: %w", errServerAway, err)
	case err != nil: // the error can contain the whole response, including a client secret
		code := "a response that can't be used"
		if refused, ok := errors.AsType[*oauthex.ClientRegistrationError](err); ok {
			code = strconv.Quote(shorten(withoutControls(refused.ErrorCode)))
		}
		return fmt.Errorf("%w: its authorization server %s has not registered the mesh as a client, but has answered %s", errServerUnusable, at.Issuer, code)
	}
	out.ClientID, out.ClientSecret = registered.ClientID, registered.ClientSecret
	out.InHeader = registered.TokenEndpointAuthMethod == "" || registered.TokenEndpointAuthMethod == "client_secret_basic"
	return nil
}
