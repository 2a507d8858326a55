package issuer_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/internal/issuer"
)

// verified returns the principal of a valid token, or the refusal.
func verified(t *testing.T, change func(*identityv1.Issuer), changes object) (*identityv1.Principal, *issuer.Refusal) {
	t.Helper()
	identity, refusal := newSet(t, change).Verify(token(t, changes), now)
	if refusal != nil {
		return nil, refusal
	}
	return identity.Principal, nil
}

// The claims are those that the providers document for their access tokens.
func TestMapping_OfProviders(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		change func(*identityv1.Issuer)
		claims object
		want   string
	}{
		{
			name: "Keycloak",
			change: func(i *identityv1.Issuer) {
				i.GroupsClaim, i.GroupsPrefix = "/realm_access/roles", "sluice-"
				i.AgentClaim, i.Agents = "/azp", map[string]string{"claude": "claude-code"}
			},
			claims: object{"azp": "claude", "scope": "openid mcp:tools", "realm_access": object{"roles": []string{"offline_access", "sluice-sre", "sluice-dev"}}},
			want:   "default corp/ana groups=dev,sre agent=claude-code owner= client=claude scopes=mcp:tools,openid",
		},
		{
			name: "Microsoft Entra ID",
			change: func(i *identityv1.Issuer) {
				i.Subject, i.GroupsClaim = "{/oid}", "/groups"
				i.Require = []*identityv1.RequiredClaim{{Claim: "/tid", Patterns: []string{"tenant-guid"}}}
			},
			claims: object{"oid": "object-guid", "tid": "tenant-guid", "azp": "client-guid", "scp": "Mcp.Call Mcp.List", "groups": []string{"group-guid"}, "ver": "2.0"},
			want:   "default object-guid groups=group-guid agent= owner= client=client-guid scopes=Mcp.Call,Mcp.List",
		},
		{
			name:   "Okta",
			change: func(i *identityv1.Issuer) { i.GroupsClaim, i.GroupsOptional = "/groups", true },
			claims: object{"cid": "0oa1", "scp": []string{"mcp"}, "uid": "00u1"},
			want:   "default corp/ana groups= agent= owner= client= scopes=mcp",
		},
		{
			name: "Google, with a verified address",
			change: func(i *identityv1.Issuer) {
				i.Subject, i.Owner = "{/email}", "{/email}"
				i.Require = []*identityv1.RequiredClaim{{Claim: "/hd", Patterns: []string{"example.com"}}}
			},
			claims: object{"email": "ana@example.com", "email_verified": true, "hd": "example.com", "azp": "client.apps.example"},
			want:   "default ana@example.com groups= agent= owner=ana@example.com client=client.apps.example scopes=",
		},
		{
			name: "Auth0, with a namespaced claim",
			change: func(i *identityv1.Issuer) {
				i.GroupsClaim = "/https:~1~1example.com~1roles"
				i.Tenant, i.TenantClaim, i.Tenants = "", "/org_id", map[string]string{"org_1": "acme"}
			},
			claims: object{"org_id": "org_1", "https://example.com/roles": []string{"admin"}},
			want:   "acme corp/ana groups=admin agent= owner= client= scopes=",
		},
		{
			name: "Kubernetes",
			change: func(i *identityv1.Issuer) {
				i.Subject = "k8s/{/kubernetes.io/namespace}/{/kubernetes.io/serviceaccount/name}"
			},
			claims: object{"kubernetes.io": object{"namespace": "agents", "serviceaccount": object{"name": "triage", "uid": "1"}}},
			want:   "default k8s/agents/triage groups= agent= owner= client= scopes=",
		},
		{
			name: "GitHub Actions",
			change: func(i *identityv1.Issuer) {
				i.Subject = "github/{/repository}"
				i.Require = []*identityv1.RequiredClaim{
					{Claim: "/repository_owner_id", Patterns: []string{"42"}}, {Claim: "/ref", Patterns: []string{"refs/heads/main", "refs/tags/v*"}},
				}
			},
			claims: object{"repository": "acme/site", "repository_owner_id": "42", "ref": "refs/tags/v1.2"},
			want:   "default github/acme/site groups= agent= owner= client= scopes=",
		},
	} {
		p, refusal := verified(t, test.change, test.claims)
		if refusal != nil {
			t.Errorf("%s: %v", test.name, refusal)
			continue
		}
		got := fmt.Sprintf("%s %s groups=%s agent=%s owner=%s client=%s scopes=%s", p.GetTenant(), p.GetSubject(),
			strings.Join(p.GetGroups(), ","), p.GetAgent(), p.GetOwner(), p.GetClient(), strings.Join(p.GetScopes(), ","))
		if got != test.want {
			t.Errorf("%s: the principal is\n%s, want\n%s", test.name, got, test.want)
		}
		if p.GetPerson() != p.GetOwner() { // the issuer names the owner
			t.Errorf("%s: the person is %q, and the owner %q", test.name, p.GetPerson(), p.GetOwner())
		}
	}
}

func TestMapping_RefusesClaimsThatCanNotBeMapped(t *testing.T) {
	t.Parallel()
	groups := func(i *identityv1.Issuer) { i.GroupsClaim = "/groups" }
	agent := func(i *identityv1.Issuer) { i.AgentClaim, i.Agents = "/client_id", map[string]string{"known": "bot"} }
	require := func(r *identityv1.RequiredClaim) func(*identityv1.Issuer) {
		return func(i *identityv1.Issuer) { i.Require = []*identityv1.RequiredClaim{r} }
	}
	many := make([]string, 257)
	for i := range many {
		many[i] = fmt.Sprint("group-", i)
	}
	for name, test := range map[string]struct {
		change func(*identityv1.Issuer)
		claims object
	}{
		"no groups":                       {groups, nil},
		"groups are a text":               {groups, object{"groups": "finance"}},
		"a group is a number":             {groups, object{"groups": []any{"finance", 1}}},
		"a group is empty":                {groups, object{"groups": []string{""}}},
		"a group has a control character": {groups, object{"groups": []string{"fin\x00ance"}}},
		"257 groups":                      {groups, object{"groups": many}},
		"groups elsewhere (Entra)":        {groups, object{"groups": []string{"a"}, "_claim_names": object{"groups": "src1"}}},
		"too many groups (Entra)":         {groups, object{"hasgroups": true}},
		"an agent that is not listed":     {agent, object{"client_id": "stranger"}},
		"no agent":                        {agent, nil},
		"an address that is not verified": {func(i *identityv1.Issuer) { i.Subject = "{/email}" }, object{"email": "ana@example.com", "email_verified": false}},
		"an address without verification": {func(i *identityv1.Issuer) { i.Subject = "{/email}" }, object{"email": "ana@example.com"}},
		"email_verified is a text":        {func(i *identityv1.Issuer) { i.Subject = "{/email}" }, object{"email": "ana@example.com", "email_verified": "true"}},
		"a subject of the mesh's agents":  {func(i *identityv1.Issuer) { i.Subject = "{/sub}" }, object{"sub": "agent:default/1"}},
		"a subject of the mesh":           {func(i *identityv1.Issuer) { i.Subject = "{/sub}" }, object{"sub": "system:catalogue"}},
		"a slash before the last claim":   {func(i *identityv1.Issuer) { i.Subject = "{/ns}/{/sub}" }, object{"ns": "a/b"}},
		"a tenant that is not mapped": {func(i *identityv1.Issuer) {
			i.Tenant, i.TenantClaim, i.Tenants = "", "/org", map[string]string{"a": "a"}
		}, object{"org": "b"}},
		"a required claim is missing":   {require(&identityv1.RequiredClaim{Claim: "/hd", Patterns: []string{"*"}}), nil},
		"a required claim is null":      {require(&identityv1.RequiredClaim{Claim: "/hd", Patterns: []string{"*"}}), object{"hd": struct{}{}}},
		"a required claim differs":      {require(&identityv1.RequiredClaim{Claim: "/hd", Patterns: []string{"example.com"}}), object{"hd": "example.com.evil.example"}},
		"a pattern matches only a part": {require(&identityv1.RequiredClaim{Claim: "/ref", Patterns: []string{"refs/tags/*"}}), object{"ref": "xrefs/tags/v1"}},
		"true is a text":                {require(&identityv1.RequiredClaim{Claim: "/ok", Equals: new(true)}), object{"ok": "true"}},
		"a text is true":                {require(&identityv1.RequiredClaim{Claim: "/ok", Patterns: []string{"true"}}), object{"ok": true}},
		"no item of a list matches":     {require(&identityv1.RequiredClaim{Claim: "/amr", Patterns: []string{"mfa"}}), object{"amr": []any{"pwd", 1}}},
		"a scope is too long":           {nil, object{"scope": strings.Repeat("s", 257)}},
		"scope is a number":             {nil, object{"scope": 1}},
		"a client is too long":          {nil, object{"client_id": strings.Repeat("c", 257)}},
	} {
		if p, refusal := verified(t, test.change, test.claims); refusal == nil {
			t.Errorf("%s: accepted as %v", name, p)
		} else if refusal.Issuer != "corp" {
			t.Errorf("%s: the refusal names the issuer %q, want corp", name, refusal.Issuer)
		}
	}
}

// The configuration gives groups to subjects of the tenant "default". Rules that deny calls of these groups apply to
// JWTs, too.
func TestGroups_OfTheConfigurationAreAdded(t *testing.T) {
	t.Parallel()
	change := func(i *identityv1.Issuer) {
		i.GroupsClaim = "/groups"
		i.SubjectGroups = map[string]*identityv1.SubjectGroups{"corp/ana": {Groups: []string{"contractors", "finance"}}}
	}
	p, refusal := verified(t, change, object{"groups": []string{"sre", "finance"}})
	if refusal != nil || !slices.Equal(p.GetGroups(), []string{"contractors", "finance", "sre"}) {
		t.Errorf("the groups are %q, %v", p.GetGroups(), refusal)
	}
	if p, _ := verified(t, change, object{"sub": "ben", "groups": []string{"sre"}}); !slices.Equal(p.GetGroups(), []string{"sre"}) {
		t.Errorf("the groups of ben are %q", p.GetGroups())
	}
	other := func(i *identityv1.Issuer) { change(i); i.Tenant = "acme" }
	if p, _ := verified(t, other, object{"groups": []string{"sre"}}); !slices.Equal(p.GetGroups(), []string{"sre"}) {
		t.Errorf("the groups in another tenant are %q", p.GetGroups())
	}
}

func TestRequire_AcceptsPatternsAndLists(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		required *identityv1.RequiredClaim
		value    any
	}{
		{&identityv1.RequiredClaim{Claim: "/c", Patterns: []string{"*"}}, ""},
		{&identityv1.RequiredClaim{Claim: "/c", Patterns: []string{"a*b*c"}}, "a--b--b--c"},
		{&identityv1.RequiredClaim{Claim: "/c", Patterns: []string{"x", "repo:acme/*"}}, "repo:acme/site:ref:refs/heads/main"},
		{&identityv1.RequiredClaim{Claim: "/c", Patterns: []string{"mfa"}}, []string{"pwd", "mfa"}},
		{&identityv1.RequiredClaim{Claim: "/c", Equals: new(false)}, false},
	} {
		change := func(i *identityv1.Issuer) { i.Require = []*identityv1.RequiredClaim{test.required} }
		if _, refusal := verified(t, change, object{"c": test.value}); refusal != nil {
			t.Errorf("%v does not accept %v: %v", test.required, test.value, refusal)
		}
	}
}

// Two callers with different claims never get one subject.
func TestSubject_DiffersForDifferentClaims(t *testing.T) {
	t.Parallel()
	change := func(i *identityv1.Issuer) { i.Subject = "k8s/{/ns}/{/sub}" }
	values := []string{"a", "b", "a/b", "/", "", "{/sub}", "a/", "/b", "ä", "%2F"}
	seen := make(map[string]string)
	for _, ns := range values {
		for _, sub := range values {
			p, refusal := verified(t, change, object{"ns": ns, "sub": sub})
			if refusal != nil {
				continue
			}
			if other, ok := seen[p.GetSubject()]; ok {
				t.Errorf("%q and %q/%q have the subject %q", other, ns, sub, p.GetSubject())
			}
			seen[p.GetSubject()] = ns + "/" + sub
		}
	}
	if len(seen) != 36 {
		t.Errorf("only %d subjects were compared", len(seen))
	}
}

func TestNewSet_RefusesIssuersThatCanNotBeUsed(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*identityv1.Issuer){
		"no audience":           func(i *identityv1.Issuer) { i.Resource, i.Audiences = "", nil },
		"no algorithm":          func(i *identityv1.Issuer) { i.Algorithms = nil },
		"a symmetric algorithm": func(i *identityv1.Issuer) { i.Algorithms = []string{"HS256"} },
		"no tenant":             func(i *identityv1.Issuer) { i.Tenant = "" },
		"no claim in subject":   func(i *identityv1.Issuer) { i.Subject = "ana" },
		"adjacent claims":       func(i *identityv1.Issuer) { i.Subject = "{/a}{/b}" },
		"no slash between":      func(i *identityv1.Issuer) { i.Subject = "{/a}-{/b}" },
		"an open brace":         func(i *identityv1.Issuer) { i.Subject = "corp/{/sub" },
		"a brace too much":      func(i *identityv1.Issuer) { i.Subject = "corp/{/sub}}" },
		"not a JSON Pointer":    func(i *identityv1.Issuer) { i.Subject = "corp/{sub}" },
		"no max_life":           func(i *identityv1.Issuer) { i.MaxLife = nil },
		"a requirement without a value": func(i *identityv1.Issuer) {
			i.Require = []*identityv1.RequiredClaim{{Claim: "/hd"}}
		},
		"a key that can't be read": func(i *identityv1.Issuer) { i.Keys = []*identityv1.IssuerKey{{PublicKey: []byte("x")}} },
	} {
		if _, err := issuer.NewSet([]*identityv1.Issuer{corp(t, change)}); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if _, err := issuer.NewSet([]*identityv1.Issuer{corp(t, nil), corp(t, nil)}); err == nil {
		t.Error("two issuers with one name: accepted")
	}
	if !slices.Contains(issuer.Algorithms(), "EdDSA") {
		t.Error("EdDSA is not an algorithm")
	}
}

// The claims auth_time and acr are optional. Values that can't be used count as absent.
func TestAuthentication_OfTheClaims(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("c", 256)
	for name, test := range map[string]struct {
		claims object
		at     int64
		acr    string
	}{
		"both":                       {object{"auth_time": now.Unix() - 60, "acr": "phr"}, now.Unix() - 60, "phr"},
		"none":                       {nil, 0, ""},
		"a class of 256 bytes":       {object{"acr": long}, 0, long},
		"a class of 257 bytes":       {object{"acr": long + "c"}, 0, ""},
		"a class with a control":     {object{"acr": "p\x00hr"}, 0, ""},
		"a class that is a number":   {object{"acr": 1}, 0, ""},
		"a class that is a list":     {object{"acr": []string{"phr"}}, 0, ""},
		"a time that is a text":      {object{"auth_time": "1700000000"}, 0, ""},
		"a time before 1970":         {object{"auth_time": -1}, 0, ""},
		"a time after the year 9999": {object{"auth_time": 1e300}, 0, ""},
		"the time 0":                 {object{"auth_time": 0}, 0, ""},
	} {
		p, refusal := verified(t, nil, test.claims)
		if refusal != nil {
			t.Errorf("%s: %v", name, refusal)
			continue
		}
		if at := p.GetAuthTime(); (at == nil) != (test.at == 0) || at.GetSeconds() != test.at || p.GetAcr() != test.acr {
			t.Errorf("%s: %v, acr %q", name, at, p.GetAcr())
		}
	}
}
