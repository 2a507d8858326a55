package issuer

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/internal/principal"
	"github.com/sluice-mesh/sluice/services/internal/valuepath"
)

const (
	maxSubject   = 256
	maxAgent     = 128
	maxGroups    = 256
	maxGroupName = 128
	maxScopes    = 128
	maxScopeName = 256
	maxClient    = 256
	maxServers   = 16
	maxACR       = 256
)

// claimPath is a JSON Pointer together with its parsed path. The zero value selects no claim.
type claimPath struct {
	pointer string
	path    valuepath.Path
}

func parseClaim(pointer string) (claimPath, error) {
	if pointer == "" {
		return claimPath{}, nil
	}
	path, err := parsePointer(pointer)
	return claimPath{pointer: pointer, path: path}, err
}

type requirement struct {
	claimPath
	patterns []string
	equals   *bool
}

// tenantMapping selects the tenant of a caller. If claim is set, values maps the value of the claim to the tenant.
// Otherwise the tenant is fixed.
type tenantMapping struct {
	fixed  string
	claim  claimPath
	values map[string]string
}

type groupMapping struct {
	claim    claimPath
	prefix   string
	optional bool
}

type agentMapping struct {
	claim        claimPath
	names        map[string]string
	namedByClaim bool
}

// parseMapping parses the parts of an issuer's configuration that map claims to a principal.
func (i *issuer) parseMapping(from *identityv1.Issuer) error {
	var err error
	parse := func(into *claimPath, pointer string) {
		if parsed, problem := parseClaim(pointer); problem != nil {
			err = errors.Join(err, problem)
		} else {
			*into = parsed
		}
	}
	i.tenant = tenantMapping{fixed: from.GetTenant(), values: from.GetTenants()}
	i.groups = groupMapping{prefix: from.GetGroupsPrefix(), optional: from.GetGroupsOptional()}
	i.agent = agentMapping{names: from.GetAgents(), namedByClaim: from.GetAgentNamedByClaim()}
	parse(&i.tenant.claim, from.GetTenantClaim())
	parse(&i.groups.claim, from.GetGroupsClaim())
	parse(&i.agent.claim, from.GetAgentClaim())
	for _, r := range from.GetRequire() {
		required := requirement{patterns: r.GetPatterns(), equals: r.Equals}
		if parse(&required.claimPath, r.GetClaim()); required.pointer == "" || (len(required.patterns) == 0) == (required.equals == nil) {
			return fmt.Errorf("the requirement of the claim %q has no value", r.GetClaim())
		}
		i.require = append(i.require, required)
	}
	subject, problem := parseTemplate(from.GetSubject())
	i.subject, err = subject, errors.Join(err, problem)
	if from.GetOwner() != "" {
		owner, problem := parseTemplate(from.GetOwner())
		i.owner, err = owner, errors.Join(err, problem)
	}
	if (i.tenant.fixed == "") == (i.tenant.claim.pointer == "") {
		return errors.New("it needs either a tenant or a claim that selects the tenant")
	}
	return errors.Join(err, i.parseDelegation(from))
}

// check returns a refusal unless the claims satisfy the requirement.
func (r requirement) check(claims object) *Refusal {
	value, ok := claims.find(r.path)
	if !ok {
		return refuse(WrongClaim, "the token has no claim %s", r.pointer)
	}
	accepted := false
	switch value := value.(type) {
	case bool:
		accepted = r.equals != nil && value == *r.equals
	case string:
		accepted = r.matches(value)
	case []any:
		accepted = slices.ContainsFunc(value, func(item any) bool {
			text, ok := item.(string)
			return ok && r.matches(text)
		})
	}
	if !accepted {
		return refuse(WrongClaim, "the token's claim %s does not have a value that the issuer's configuration requires", r.pointer)
	}
	return nil
}

func (r requirement) matches(text string) bool {
	return slices.ContainsFunc(r.patterns, func(pattern string) bool { return matchPattern(pattern, text) })
}

// matchPattern reports whether the whole text matches a pattern, in which `*` matches any text.
func matchPattern(pattern, text string) bool {
	parts := strings.Split(pattern, "*")
	if len(parts) == 1 {
		return text == pattern
	}
	text, ok := strings.CutPrefix(text, parts[0])
	if !ok {
		return false
	}
	last := len(parts) - 1
	for _, part := range parts[1:last] {
		_, after, found := strings.Cut(text, part)
		if !found {
			return false
		}
		text = after
	}
	return strings.HasSuffix(text, parts[last])
}

// principal maps the claims to a principal. The claim `aud` was checked before, and gives access to the given servers.
func (i *issuer) principal(claims object, servers []string, t *trace) (*identityv1.Principal, *Refusal) {
	for _, r := range i.require {
		if refusal := r.check(claims); refusal != nil {
			return nil, refusal
		}
		t.addf("require", "the claim %s has a required value", r.pointer)
	}
	p := &identityv1.Principal{Role: authv1.TokenRole_TOKEN_ROLE_AGENT, Issuer: i.name, Servers: servers}
	for _, step := range []func(object, *identityv1.Principal, *trace) *Refusal{
		i.setTenant, i.setSubject, i.setGroups, i.addSubjectGroups, i.setAgent, setClient, setScopes, setAuthentication, i.setActors,
	} {
		if refusal := step(claims, p, t); refusal != nil {
			return nil, refusal
		}
	}
	return p, nil
}

func (i *issuer) setTenant(claims object, p *identityv1.Principal, t *trace) *Refusal {
	p.Tenant = i.tenant.fixed
	if i.tenant.claim.pointer != "" {
		value, refusal := claims.textAt(i.tenant.claim.pointer, i.tenant.claim.path)
		if refusal != nil {
			return refusal
		}
		if p.Tenant = i.tenant.values[value]; p.GetTenant() == "" {
			return refuse(WrongClaim, "the value of the token's claim %s is not mapped to a tenant", i.tenant.claim.pointer)
		}
	}
	t.addf("tenant", "%s", p.GetTenant())
	return nil
}

// setSubject sets the subject, the owner and the person. The person is the owner, because the issuer names the owner. A
// subject with the claim /email needs an email address that the issuer has verified. Otherwise people could enter the
// address of another person.
func (i *issuer) setSubject(claims object, p *identityv1.Principal, t *trace) *Refusal {
	var refusal *Refusal
	if p.Subject, refusal = i.subject.execute(claims); refusal != nil {
		return refusal
	}
	if len(i.owner.placeholders) > 0 {
		if p.Owner, refusal = i.owner.execute(claims); refusal != nil {
			return refusal
		}
		p.Person = p.GetOwner()
	}
	if verified, _ := claims["email_verified"].(bool); !verified && (i.subject.uses("/email") || i.owner.uses("/email")) {
		return refuse(WrongClaim, "the token's claim /email is not verified: its claim /email_verified is not true")
	}
	for _, subject := range []string{p.GetSubject(), p.GetOwner()} {
		if len(subject) > maxSubject {
			return refuse(WrongClaim, "the subject or the owner has %d bytes, more than %d", len(subject), maxSubject)
		}
		if principal.IsReserved(subject) {
			return refuse(WrongClaim, "the subject or the owner begins with agent:, act: or system:, which only the mesh uses")
		}
	}
	t.addf("subject", "%s", p.GetSubject())
	if p.GetOwner() != "" {
		t.addf("owner", "%s", p.GetOwner())
	}
	return nil
}

// overageClaims are claims of Microsoft Entra ID that say that the token omits groups, because there are too many.
var overageClaims = []string{"hasgroups", "_claim_names"}

// setGroups sets the groups. It refuses a token whose list of groups is incomplete or can't be read, because a rule
// might deny a call to the members of a group that is missing from the list.
func (i *issuer) setGroups(claims object, p *identityv1.Principal, t *trace) *Refusal {
	at := i.groups.claim
	if at.pointer == "" {
		return nil
	}
	for _, name := range overageClaims {
		if _, ok := claims[name]; ok {
			return refuse(WrongClaim, "the token omits groups, because there are too many (claim %s): let the issuer send only groups that are assigned to the application", name)
		}
	}
	value, ok := claims.find(at.path)
	if !ok && i.groups.optional {
		t.addf("groups", "none: the token has no claim %s", at.pointer)
		return nil
	}
	list, isList := value.([]any)
	names, areTexts := textsOf(list)
	if !ok || !isList || !areTexts {
		return refuse(WrongClaim, "the token's claim %s is not a list of groups", at.pointer)
	}
	groups := make(map[string]bool, len(names))
	for _, name := range names {
		group, used := strings.CutPrefix(name, i.groups.prefix)
		if !used {
			continue
		}
		if group == "" || len(group) > maxGroupName || !isPlain(group) {
			return refuse(WrongClaim, "the token's claim %s contains a group that does not have 1 to %d bytes, or contains control characters", at.pointer, maxGroupName)
		}
		groups[group] = true
	}
	if len(groups) > maxGroups {
		return refuse(WrongClaim, "the token's claim %s contains %d groups, more than %d", at.pointer, len(groups), maxGroups)
	}
	p.Groups = slices.Sorted(maps.Keys(groups))
	t.addf("groups", "%s", strings.Join(p.GetGroups(), ", "))
	return nil
}

// addSubjectGroups adds the groups that the configuration gives to the subject.
func (i *issuer) addSubjectGroups(_ object, p *identityv1.Principal, t *trace) *Refusal {
	more := i.subjectGroups[p.GetSubject()].GetGroups()
	if p.GetTenant() != "default" || len(more) == 0 {
		return nil
	}
	groups := slices.Concat(p.GetGroups(), more)
	slices.Sort(groups)
	if p.Groups = slices.Compact(groups); len(p.GetGroups()) > maxGroups {
		return refuse(WrongClaim, "the caller has %d groups with those of the configuration, more than %d", len(p.GetGroups()), maxGroups)
	}
	t.addf("groups", "%s, with those of the configuration", strings.Join(p.GetGroups(), ", "))
	return nil
}

func (i *issuer) setAgent(claims object, p *identityv1.Principal, t *trace) *Refusal {
	at := i.agent.claim
	if at.pointer == "" {
		return nil
	}
	value, refusal := claims.textAt(at.pointer, at.path)
	if refusal != nil {
		return refusal
	}
	if p.Agent, refusal = i.agent.nameOf(at.pointer, value); refusal != nil {
		return refusal
	}
	t.addf("agent", "%s", p.GetAgent())
	return nil
}

// nameOf returns the name of the agent that the value of a claim identifies.
func (m *agentMapping) nameOf(pointer, value string) (string, *Refusal) {
	name, known := m.names[value]
	if !known {
		name = value
	}
	switch {
	case !known && !m.namedByClaim:
		return "", refuse(WrongClaim, "the token's claim %s names an agent that the issuer's configuration does not list", pointer)
	case len(name) > maxAgent:
		return "", refuse(WrongClaim, "the name of the agent has %d bytes, more than %d", len(name), maxAgent)
	}
	return name, nil
}

// setClient sets the OAuth client to the claim client_id (RFC 9068, section 2.2). If there is none, it uses the claim
// azp (OpenID Connect Core, section 2).
func setClient(claims object, p *identityv1.Principal, t *trace) *Refusal {
	for _, name := range []string{"client_id", "azp"} {
		client, refusal := claims.text(name)
		if refusal != nil {
			return refusal
		}
		if len(client) > maxClient || !isPlain(client) {
			return refuse(WrongClaim, "the token's %s has more than %d bytes, or contains control characters", name, maxClient)
		}
		if p.Client = client; client != "" {
			t.addf("client", "%s", client)
			return nil
		}
	}
	return nil
}

// setScopes sets the scopes to those in the claims scope (RFC 9068, section 2.2.3) and scp. Some issuers send scp as a
// list.
func setScopes(claims object, p *identityv1.Principal, t *trace) *Refusal {
	scopes := make(map[string]bool)
	for _, name := range []string{"scope", "scp"} {
		texts, refusal := claims.texts(name)
		if refusal != nil {
			return refusal
		}
		for _, text := range texts {
			for scope := range strings.FieldsSeq(text) {
				if len(scope) > maxScopeName || !isPlain(scope) {
					return refuse(WrongClaim, "the token's %s contains a scope of more than %d bytes", name, maxScopeName)
				}
				scopes[scope] = true
			}
		}
	}
	if len(scopes) > maxScopes {
		return refuse(WrongClaim, "the token has %d scopes, more than %d", len(scopes), maxScopes)
	}
	if p.Scopes = slices.Sorted(maps.Keys(scopes)); len(scopes) > 0 {
		t.addf("scopes", "%s", strings.Join(p.GetScopes(), " "))
	}
	return nil
}

// setAuthentication sets when and how the person authenticated at the issuer, according to the claims auth_time and acr
// (OpenID Connect Core, section 2; RFC 9470, section 6). A claim with an unexpected value counts as absent. The token
// is still valid, but does not satisfy a requirement for these claims.
func setAuthentication(claims object, p *identityv1.Principal, t *trace) *Refusal {
	if at, refusal := claims.date("auth_time"); refusal == nil && at.Unix() > 0 {
		p.AuthTime = timestamppb.New(at)
		t.addf("authentication", "at %s", at.UTC().Format(time.RFC3339))
	}
	if acr, ok := claims["acr"].(string); ok && acr != "" && len(acr) <= maxACR && isPlain(acr) {
		p.Acr = acr
		t.addf("authentication", "with the class (acr) %s", acr)
	}
	return nil
}
