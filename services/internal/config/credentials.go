package config

import (
	"net/url"
	"regexp"
	"slices"
	"strings"
)

// Credentials says how the mesh signs in at a server over HTTP.
type Credentials struct {
	// As is `shared` or `person`. With `shared`, all callers use the same account of the server, and an operator signs in
	// with `sluice connect`. With `person`, each person signs in with `sluice connect`, and the person's agents use this
	// account. Required.
	As string `yaml:"as"`
	// OAuth says how the mesh gets access tokens. Required.
	OAuth *ServerOAuth `yaml:"oauth"`
}

// ServerOAuth configures the mesh as an OAuth client of a server. Without any key, the server's metadata name the
// authorization server, and the mesh registers itself there.
type ServerOAuth struct {
	// ClientID is the identifier of a client that is registered at the authorization server. Its redirect URI is
	// `http://127.0.0.1/callback` with any port (RFC 8252). If it is empty, the mesh registers a client (RFC 7591).
	ClientID string `yaml:"client_id"`
	// ClientSecret is the secret of the client. If it is absent, the client is public.
	ClientSecret Secret `yaml:"client_secret"`
	// Scopes are the scopes to request, at most 32. Empty means the scopes that the server asks for, or those that its
	// metadata list.
	Scopes []string `yaml:"scopes"`
	// Issuer is the identifier of the authorization server. Set it if the server's metadata list several.
	Issuer string `yaml:"issuer"`
	// Resource is `omit` if the authorization server refuses the parameter `resource` (RFC 8707), as Microsoft Entra ID
	// does for some servers.
	Resource string `yaml:"resource"`
	// Prompt says what the authorization server asks the person who signs in (OpenID Connect Core, section 3.1.2.1):
	// `consent`, `login`, `select_account`, or `omit` if the authorization server does not accept the parameter. Empty
	// means `consent` with `as: person` or the scope `offline_access`, and otherwise `omit`.
	Prompt string `yaml:"prompt"`
}

// These are values of [ServerOAuth.Prompt].
const (
	PromptConsent       = "consent"
	PromptLogin         = "login"
	PromptSelectAccount = "select_account"
	PromptOmit          = "omit"
)

// These are the values of [Credentials.As].
const (
	AsShared = "shared"
	AsPerson = "person"
)

// ForEachPerson reports whether each person uses a separate account of the server.
func (c *Credentials) ForEachPerson() bool { return c != nil && c.As == AsPerson }

// maxServerScopes is the maximum number of scopes that a server's configuration may contain.
const maxServerScopes = 32

// scopeToken matches a scope (RFC 6749, section 3.3).
var scopeToken = regexp.MustCompile(`^[\x21\x23-\x5b\x5d-\x7e]{1,128}$`)

// check checks the credentials of a server. The keys of the server itself were checked before.
func (c *Credentials) check(p *problems, path string, s *Server) {
	if c.As != AsShared && c.As != AsPerson {
		p.addf(path+".as", "%q is not shared or person: write `as: shared` to call the server with one account for all callers, or `as: person` if each person uses their own account", c.As)
	}
	if s.HTTP == nil {
		p.addf(path, "is only for servers over HTTP: remove it, or set `http`")
		return
	}
	for name := range s.HTTP.Headers {
		if strings.EqualFold(name, "authorization") {
			p.addf(path, "can't be used together with the header %q: remove one of them", name)
		}
	}
	at, err := url.Parse(s.HTTP.URL)
	if len(s.HTTP.Proxy.KeychainEntries()) > 0 {
		p.addf(path, "can't be used together with a reference to the keychain in `http.proxy`, because the identity service uses the proxy, too: use ${env:NAME} or ${file:PATH}")
	}
	switch {
	case err != nil: // reported before
	case at.User != nil:
		p.addf(path, "can't be used together with a user name in `http.url`: remove one of them")
	case at.Scheme == "http" && !loopback(at.Hostname()):
		p.addf(path, "would send access tokens without TLS: write an https URL into `http.url`")
	}
	if c.OAuth == nil {
		p.addf(path+".oauth", "is missing: write `oauth: {}` to let the mesh register itself at the authorization server")
		return
	}
	c.OAuth.check(p, path+".oauth")
}

func (o *ServerOAuth) check(p *problems, path string) {
	if o.ClientSecret != "" && o.ClientID == "" {
		p.addf(path+".client_id", "is missing: `client_secret` belongs to a registered client")
	}
	if len(o.Scopes) > maxServerScopes {
		p.addf(path+".scopes", "%d scopes are more than %d", len(o.Scopes), maxServerScopes)
	}
	for _, scope := range o.Scopes {
		if !scopeToken.MatchString(scope) {
			p.addf(path+".scopes", "%q is not a scope: at most 128 ASCII characters without spaces, quotes and backslashes", scope)
		}
	}
	if o.Issuer != "" {
		p.checkWebURL(path+".issuer", o.Issuer)
	}
	if o.Resource != "" && o.Resource != "omit" {
		p.addf(path+".resource", "%q is not omit", o.Resource)
	}
	if o.Prompt != "" && !slices.Contains([]string{PromptConsent, PromptLogin, PromptSelectAccount, PromptOmit}, o.Prompt) {
		p.addf(path+".prompt", "%q is not consent, login, select_account or omit", o.Prompt)
	}
}
