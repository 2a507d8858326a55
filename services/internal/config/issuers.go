package config

import (
	"cmp"
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/sluice-mesh/sluice/services/internal/issuer"
	"github.com/sluice-mesh/sluice/services/internal/strictyaml"
)

// Issuer is an OpenID provider or an authorization server whose JWTs (RFC 7519) identify agents at the gateway.
type Issuer struct {
	// Name is unique: 1 to 32 lower-case letters, digits or `-`. Required.
	Name string `yaml:"name"`
	// Issuer is the exact claim `iss`: an https URL, or an http URL on loopback. Required.
	Issuer string `yaml:"issuer"`
	// KeySet is the URL of the issuer's keys (JWK Set). Empty means the URL in the issuer's metadata.
	KeySet string `yaml:"key_set"`
	// CA is a PEM file of the issuer's certificate authorities. Empty means the system's certificate authorities.
	CA string `yaml:"ca"`
	// Audiences lists values of `aud` that give access to all servers, such as the GUID of an application, in addition to
	// `public_url` with `/mcp`. `/mcp/NAME` gives access to one server.
	Audiences []string `yaml:"audiences"`
	// Require maps claims, as JSON Pointers, to required values: `true`, `false`, a text with `*` for any text, or a list
	// of texts of which one must match.
	Require map[string]RequiredValue `yaml:"require"`
	// Tenant is the tenant of all callers. Empty means `default` unless `tenants` is set.
	Tenant string `yaml:"tenant"`
	// Tenants selects the tenant by a claim, instead of `tenant`.
	Tenants *ClaimMap `yaml:"tenants"`
	// Subject is a template of the caller's subject, with claims as JSON Pointers in braces. Empty means `NAME/{/sub}`
	// with the issuer's name.
	Subject string `yaml:"subject"`
	// Realm is a name that issuers share if they identify the same people. Issuers of one tenant whose subjects do not
	// begin with their own names must have the same realm.
	Realm string `yaml:"realm"`
	// Groups selects the claim that lists the caller's groups.
	Groups *IssuerGroups `yaml:"groups"`
	// Agent selects the claim that identifies the agent.
	Agent *IssuerAgent `yaml:"agent"`
	// Owner is a template of the caller's owner, or `subject` if the caller is a person's own agent.
	Owner string `yaml:"owner"`
	// Delegation is `act` to accept tokens with the claim `act` (RFC 8693), in which an agent acts for a person.
	Delegation string `yaml:"delegation"`
	// Algorithms lists the accepted signature algorithms. Empty means RS256, PS256, ES256 and EdDSA.
	Algorithms []string `yaml:"algorithms"`
	// Leeway is the accepted difference between the clocks, at most `2m`. Empty means `30s`.
	Leeway *time.Duration `yaml:"leeway"`
	// MaxLife is the maximum time from `iat` to `exp`, at most `24h`. Empty means `2h`.
	MaxLife time.Duration `yaml:"max_life"`
	// People maps the roles `viewer`, `approver` and `operator` to the groups whose members may sign in with the role. Set
	// this together with `sign_in`.
	People map[string][]string `yaml:"people"`
	// SignIn is the OAuth client of `sluice login`.
	SignIn *SignIn `yaml:"sign_in"`
}

// SignIn is the OAuth client with which people sign in at an issuer.
type SignIn struct {
	// ClientID is the client's identifier at the issuer. Its redirect URI is `http://127.0.0.1/callback` with any port
	// (RFC 8252). Required.
	ClientID string `yaml:"client_id"`
	// ClientSecret is the client's secret. If it is absent, the client is public.
	ClientSecret Secret `yaml:"client_secret"`
	// Scopes are the requested scopes, at most 16, with `openid`. Empty means only `openid`.
	Scopes []string `yaml:"scopes"`
	// Device lets people sign in on another device (RFC 8628). An attacker can trick people into confirming the attacker's
	// code.
	Device bool `yaml:"device"`
	// Session is how long a session lasts, at most `24h`. Empty means `12h`.
	Session time.Duration `yaml:"session"`
}

// ClaimMap maps values of a claim to names.
type ClaimMap struct {
	// Claim is the JSON Pointer of the claim, such as `/org`. Required.
	Claim string `yaml:"claim"`
	// Map contains the tenant for each accepted value of the claim. Other values are refused. Required.
	Map map[string]string `yaml:"map"`
}

// IssuerGroups selects the groups of a caller.
type IssuerGroups struct {
	// Claim is the JSON Pointer of a list of groups, such as `/realm_access/roles`. Required.
	Claim string `yaml:"claim"`
	// Prefix selects groups that begin with it, and is removed from their names.
	Prefix string `yaml:"prefix"`
	// Optional accepts tokens without the claim. Their callers have no groups.
	Optional bool `yaml:"optional"`
}

// IssuerAgent selects the name of the agent.
type IssuerAgent struct {
	// Claim is the JSON Pointer of a claim that identifies the client, such as `/client_id`. Required.
	Claim string `yaml:"claim"`
	// Names maps values of the claim to names of agents.
	Names map[string]string `yaml:"names"`
	// Unknown is `refuse`, or `claim` if a value that `names` does not contain is itself the agent's name. Empty means
	// `refuse`.
	Unknown string `yaml:"unknown"`
}

// RequiredValue is the required value of a claim. Either Equals or Patterns is set.
type RequiredValue struct {
	Equals   *bool
	Patterns []string
}

// UnmarshalYAML implements yaml.Unmarshaler.
func (v *RequiredValue) UnmarshalYAML(n *yaml.Node) error {
	items := []*yaml.Node{n}
	if n.Kind == yaml.SequenceNode {
		items = n.Content
	}
	for _, item := range items {
		switch {
		case item.Kind == yaml.ScalarNode && item.ShortTag() == "!!bool" && n.Kind == yaml.ScalarNode:
			v.Equals = new(item.Value == "true")
		case item.Kind == yaml.ScalarNode && item.ShortTag() == "!!str":
			v.Patterns = append(v.Patterns, item.Value)
		default:
			return strictyaml.Problem{Message: "wanted true, false, a text or a list of texts", Suggestion: `put a number in quotes, as in "42"`}
		}
	}
	return nil
}

const (
	defaultLeeway  = 30 * time.Second
	maxLeeway      = 2 * time.Minute
	defaultMaxLife = 2 * time.Hour
	maxMaxLife     = 24 * time.Hour
	maxIssuers     = 16
	maxScopes      = 16
	maxStepUp      = 64
	// defaultSession is the default duration of a session. minSession and maxSession limit the duration.
	defaultSession = 12 * time.Hour
	minSession     = 5 * time.Minute
	maxSession     = 24 * time.Hour
)

// setDefaults sets the defaults of an issuer.
func (i *Issuer) setDefaults() {
	if i.Tenant == "" && i.Tenants == nil {
		i.Tenant = homeTenant
	}
	i.Subject = cmp.Or(i.Subject, i.Name+"/{/sub}")
	if i.Owner == "subject" {
		i.Owner = i.Subject
	}
	if len(i.Algorithms) == 0 {
		i.Algorithms = []string{"RS256", "PS256", "ES256", "EdDSA"}
	}
	if i.Leeway == nil {
		i.Leeway = new(defaultLeeway)
	}
	i.MaxLife = cmp.Or(i.MaxLife, defaultMaxLife)
	if i.Agent != nil {
		i.Agent.Unknown = cmp.Or(i.Agent.Unknown, "refuse")
	}
	if i.SignIn != nil {
		i.SignIn.Session = cmp.Or(i.SignIn.Session, defaultSession)
		if !slices.Contains(i.SignIn.Scopes, "openid") {
			i.SignIn.Scopes = append([]string{"openid"}, i.SignIn.Scopes...)
		}
	}
}

// Resource returns the URI of the mesh as a protected resource (RFC 8707): the URL for all servers. It returns "" if
// the mesh has no public URL.
func (f *File) Resource() string {
	if f.PublicURL == "" {
		return ""
	}
	return strings.TrimSuffix(f.PublicURL, "/") + "/mcp"
}

// AcceptedHosts returns the host names that `listen` accepts in addition to loopback names: `hosts`, and the host of
// `public_url`.
func (f *File) AcceptedHosts() []string {
	u, err := url.Parse(f.PublicURL)
	if err != nil || u.Hostname() == "" {
		return f.Hosts
	}
	return append(slices.Clone(f.Hosts), strings.ToLower(u.Hostname()))
}

func (f *File) checkIssuers(p *problems) {
	if f.PublicURL != "" {
		p.checkWebURL("public_url", f.PublicURL)
		if u, err := url.Parse(f.PublicURL); err == nil && strings.Trim(u.Path, "/") != "" {
			p.addf("public_url", "has the path %q: write the URL without it, and let the proxy in front of the mesh forward /mcp and /.well-known unchanged", u.Path)
		}
	}
	if n := len(f.Auth.Issuers); n > maxIssuers {
		p.addf("auth.issuers", "%d issuers are more than %d", n, maxIssuers)
	}
	names, urls := make(map[string]bool), make(map[string]bool)
	for n := range f.Auth.Issuers {
		i, path := &f.Auth.Issuers[n], fmt.Sprintf("auth.issuers[%d]", n)
		if !serverName.MatchString(i.Name) {
			p.addf(path+".name", "%q is not a name of 1 to 32 lower-case letters, digits or -", i.Name)
		}
		if names[i.Name] {
			p.addf(path+".name", "%q is the name of two issuers", i.Name)
		}
		if urls[i.Issuer] {
			p.addf(path+".issuer", "%q is the URL of two issuers", i.Issuer)
		}
		names[i.Name], urls[i.Issuer] = true, true
		i.check(p, path)
		if resource := f.Resource(); i.SignIn != nil && resource != "" && strings.HasPrefix(i.SignIn.ClientID+"/", resource+"/") {
			p.addf(path+".sign_in.client_id", "%q is the audience of agents: register another client for sign-in", i.SignIn.ClientID)
		}
		if f.PublicURL == "" && len(i.Audiences) == 0 {
			p.addf(path+".audiences", "is missing: write the claim aud of the issuer's tokens, or set public_url")
		}
	}
	f.checkRealms(p)
	f.checkStepUp(p)
}

// checkStepUp checks the OAuth clients of scope_step_up.
func (f *File) checkStepUp(p *problems) {
	clients := f.Auth.ScopeStepUp
	if len(clients) > 0 && len(f.Auth.Issuers) == 0 {
		p.addf("auth.scope_step_up", "has no effect without issuers: only JWTs of issuers name an OAuth client")
	}
	if len(clients) > maxStepUp {
		p.addf("auth.scope_step_up", "%d clients are more than %d", len(clients), maxStepUp)
	}
	for n, client := range clients {
		path := fmt.Sprintf("auth.scope_step_up[%d]", n)
		if client == "" || len(client) > 256 {
			p.addf(path, "is empty or longer than 256 bytes: write the client's identifier, as in the claim client_id or azp")
		}
		if slices.Contains(clients[:n], client) {
			p.addf(path, "%q is listed twice", client)
		}
	}
}

// check checks the parts of an issuer that do not depend on other issuers.
func (i *Issuer) check(p *problems, path string) {
	p.checkWebURL(path+".issuer", i.Issuer)
	if i.KeySet != "" {
		withoutQuery, _, _ := strings.Cut(i.KeySet, "?")
		p.checkWebURL(path+".key_set", withoutQuery)
	}
	for n, name := range i.Algorithms {
		if !slices.Contains(issuer.Algorithms(), name) {
			p.addf(fmt.Sprintf("%s.algorithms[%d]", path, n), "%q is not one of %s", name, strings.Join(issuer.Algorithms(), ", "))
		}
	}
	p.checkBetween(path+".leeway", *i.Leeway, 0, maxLeeway)
	p.checkBetween(path+".max_life", i.MaxLife, time.Second, maxMaxLife)
	if err := issuer.ParseSubject(i.Subject); err != nil {
		p.addf(path+".subject", "%v", err)
	}
	if i.Owner != "" {
		if err := issuer.ParseSubject(i.Owner); err != nil {
			p.addf(path+".owner", "%v", err)
		}
	}
	for claim := range i.Require {
		p.checkClaim(strictyaml.Key(path+".require", claim), claim)
	}
	if i.Groups != nil {
		p.checkClaim(path+".groups.claim", i.Groups.Claim)
	}
	if i.Agent != nil {
		p.checkClaim(path+".agent.claim", i.Agent.Claim)
		if i.Agent.Unknown != "refuse" && i.Agent.Unknown != "claim" {
			p.addf(path+".agent.unknown", "%q is not refuse or claim", i.Agent.Unknown)
		}
	}
	i.checkDelegation(p, path)
	i.checkTenants(p, path)
	i.checkPeople(p, path)
}

// checkDelegation checks the keys that select the agent and the person of a token with the claim `act`.
func (i *Issuer) checkDelegation(p *problems, path string) {
	if i.Delegation == "" {
		return
	}
	if i.Delegation != "act" {
		p.addf(path+".delegation", "%q is not act", i.Delegation)
		return
	}
	if !issuer.UsesOnly(i.Subject, "/sub") {
		p.addf(path+".subject", "must contain no claim except {/sub}, because delegation names an actor by this claim")
	}
	if i.Owner != "" && i.Owner != i.Subject {
		p.addf(path+".owner", "must be subject or absent, because with delegation the owner is the person for whom the agent acts")
	}
	if i.Agent != nil && i.Agent.Claim != issuer.ActorClaim {
		p.addf(path+".agent.claim", "%q is not %s: with delegation, the actor is the agent", i.Agent.Claim, issuer.ActorClaim)
	}
}

// scopeName matches a scope (RFC 6749, section 3.3).
var scopeName = regexp.MustCompile(`^[\x21\x23-\x5B\x5D-\x7E]{1,256}$`)

// checkPeople checks how people sign in.
func (i *Issuer) checkPeople(p *problems, path string) {
	for role, groups := range i.People {
		at := strictyaml.Key(path+".people", role)
		if role != "viewer" && role != "approver" && role != "operator" {
			p.addf(at, "%q is not one of viewer, approver, operator", role)
		}
		if len(groups) == 0 {
			p.addf(at, "is empty: name groups, or remove it")
		}
	}
	s := i.SignIn
	if s == nil {
		if len(i.People) > 0 {
			p.addf(path+".people", "has no effect without sign_in: write the OAuth client with which people sign in")
		}
		return
	}
	path += ".sign_in"
	if s.ClientID == "" || len(s.ClientID) > 256 {
		p.addf(path+".client_id", "is missing or longer than 256 bytes: register a client at the issuer, with the redirect URI http://127.0.0.1/callback")
	}
	if slices.Contains(i.Audiences, s.ClientID) {
		p.addf(path+".client_id", "%q is also one of audiences: register another client for sign-in, because otherwise an agent could sign in with the JWT of its person", s.ClientID)
	}
	if len(i.People) == 0 {
		p.addf(path, "lets no person sign in: write the groups of each role under people, such as people: {operator: [sre]}")
	}
	if len(s.Scopes) > maxScopes {
		p.addf(path+".scopes", "%d scopes are more than %d", len(s.Scopes), maxScopes)
	}
	for n, scope := range s.Scopes {
		if !scopeName.MatchString(scope) {
			p.addf(fmt.Sprintf("%s.scopes[%d]", path, n), "%q is not a scope", scope)
		}
	}
	p.checkBetween(path+".session", s.Session, minSession, maxSession)
}

func (i *Issuer) checkTenants(p *problems, path string) {
	if i.Tenants == nil {
		if !tenantName.MatchString(i.Tenant) {
			p.addf(path+".tenant", "%q is not a name of 1 to 64 lower-case letters, digits or -", i.Tenant)
		}
		return
	}
	if i.Tenant != "" {
		p.addf(path+".tenants", "set either tenant or tenants")
	}
	p.checkClaim(path+".tenants.claim", i.Tenants.Claim)
	if len(i.Tenants.Map) == 0 {
		p.addf(path+".tenants.map", "is empty: write the tenant for each value of the claim")
	}
	for value, tenant := range i.Tenants.Map {
		if !tenantName.MatchString(tenant) {
			p.addf(strictyaml.Key(path+".tenants.map", value), "%q is not a name of 1 to 64 lower-case letters, digits or -", tenant)
		}
	}
}

// checkClaim checks the JSON Pointer of a claim.
func (p *problems) checkClaim(path, pointer string) {
	if err := issuer.ParseClaim(pointer); err != nil {
		p.addf(path, "%v: write a JSON Pointer such as /sub or /realm_access/roles", err)
	}
}

// checkWebURL checks a URL: https, or http on loopback, without user, query and fragment.
func (p *problems) checkWebURL(path, text string) {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" || u.Opaque != "":
		p.addf(path, "%q is not a URL such as https://login.example.com", text)
	case u.Scheme == "http" && !loopback(u.Hostname()), u.Scheme != "http" && u.Scheme != "https":
		p.addf(path, "%q is not https: http is accepted only on loopback", text)
	}
}

// tenantsOf returns the tenants to which an issuer assigns callers.
func (i *Issuer) tenantsOf() []string {
	if i.Tenants == nil {
		return []string{i.Tenant}
	}
	return slices.Sorted(maps.Values(i.Tenants.Map))
}

// checkRealms checks that two issuers can't give the same subject or owner to different people by accident. Their
// subjects and owners are different if each begins with the name of its issuer. Otherwise both issuers must name the
// same realm.
func (f *File) checkRealms(p *problems) {
	for n := range f.Auth.Issuers {
		for m := range f.Auth.Issuers[:n] {
			a, b := &f.Auth.Issuers[m], &f.Auth.Issuers[n]
			if a.namesItself() && b.namesItself() || a.Realm != "" && a.Realm == b.Realm || !overlap(a.tenantsOf(), b.tenantsOf()) {
				continue
			}
			p.addf(fmt.Sprintf("auth.issuers[%d].realm", n), "the issuers %q and %q could give one subject or owner to two people: begin the subjects and owners of both with the issuers' names, or write the same realm for both if they identify the same people", a.Name, b.Name)
		}
	}
}

// namesItself reports whether all subjects and owners of an issuer begin with the issuer's name and `/`.
func (i *Issuer) namesItself() bool {
	return issuer.HasPrefix(i.Subject, i.Name+"/") && (i.Owner == "" || issuer.HasPrefix(i.Owner, i.Name+"/"))
}

// IsSubjectOfIssuer reports whether a subject begins with the fixed part of an issuer's subject template.
func (f *File) IsSubjectOfIssuer(subject string) bool {
	return slices.ContainsFunc(f.Auth.Issuers, func(i Issuer) bool {
		prefix, _, _ := strings.Cut(i.Subject, "{")
		return strings.HasPrefix(subject, prefix)
	})
}

func overlap(a, b []string) bool {
	return slices.ContainsFunc(a, func(name string) bool { return slices.Contains(b, name) })
}
