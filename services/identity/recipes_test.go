package identity_test

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/identity"
	"github.com/sluice-mesh/sluice/services/internal/config"
	"github.com/sluice-mesh/sluice/services/internal/issuer"
)

// recipesPage is the page whose configurations the tests load.
const recipesPage = "../../docs/identity-recipes.md"

// claims are the claims of a token, or changes of them. A nil value removes a claim.
type claims = map[string]any

// recipe is what a configuration of recipesPage does.
type recipe struct {
	// want is the principal of the token in testdata/recipes.
	want *identityv1.Principal
	// refused are changes of the claims. With each of them the token is refused, and the reason contains the key of the
	// map after `: `.
	refused map[string]claims
}

// recipes contains the recipes by the headings of the page.
var recipes = map[string]recipe{
	"Kubernetes": {
		want: &identityv1.Principal{Subject: "k8s/agents/triage", Agent: "triage", Issuer: "k8s"},
		refused: map[string]claims{
			"another namespace: /kubernetes.io/namespace":             serviceAccount("default", "triage"),
			"another service account: /serviceaccount/name":           serviceAccount("agents", "default"),
			"a name with a slash: /serviceaccount/name":               serviceAccount("agents", "a/triage"),
			"the default audience: aud":                               {"aud": []string{"https://kubernetes.default.svc.cluster.local"}},
			"the default token of a pod: max_life":                    {"exp": 1717674955 + 31536000},
			"a token of a Secret: exp":                                {"exp": nil},
			"another cluster: iss":                                    {"iss": "https://kubernetes.default.svc"},
			"a legacy token without the object: /kubernetes.io/names": {"kubernetes.io": nil, "kubernetes.io/serviceaccount/namespace": "agents"},
		},
	},
	"GitHub Actions": {
		want: &identityv1.Principal{Subject: "github/octo-org/octo-repo", Agent: "release-bot", Issuer: "github"},
		refused: map[string]claims{
			"a repository of another owner: /repository_owner_id": {"repository": "mallory/octo-repo", "repository_owner": "mallory", "repository_owner_id": "66"},
			"the name was registered again: /repository_owner_id": {"repository_owner_id": "6565"},
			"another repository of the owner: /repository names":  {"repository": "octo-org/other"},
			"another branch: /ref":                                {"ref": "refs/heads/feature"},
			"a branch whose name ends alike: /ref":                {"ref": "refs/heads/x/refs/heads/main"},
			"a pull request: /ref":                                {"ref": "refs/pull/7/merge", "event_name": "pull_request"},
			"the id is a number: /repository_owner_id":            {"repository_owner_id": 65},
			"the default audience: aud":                           {"aud": "https://github.com/octo-org"},
		},
	},
	"SPIFFE": {
		want: &identityv1.Principal{Subject: "spire/spiffe://example.org/ns/agents/sa/triage", Agent: "triage", Issuer: "spire"},
		refused: map[string]claims{
			"another trust domain: /sub":                {"sub": "spiffe://example.org.evil.example/ns/agents/sa/triage"},
			"another namespace: /sub":                   {"sub": "spiffe://example.org/ns/default/sa/triage"},
			"a workload that is not listed: /sub names": {"sub": "spiffe://example.org/ns/agents/sa/other"},
			"another audience: aud":                     {"aud": []string{"https://api.example.org"}},
			"no issuer: iss":                            {"iss": nil},
			"the trust domain as the issuer: iss":       {"iss": "spiffe://example.org"},
			"no iat: iat":                               {"iat": nil},
		},
	},
	"Keycloak": {
		want: &identityv1.Principal{
			Subject: "corp/36fa0f91-f94d-4a0c-afed-6b7d952e47da", Owner: "corp/36fa0f91-f94d-4a0c-afed-6b7d952e47da", Person: "corp/36fa0f91-f94d-4a0c-afed-6b7d952e47da", Agent: "claude-code",
			Groups: []string{"sre"}, Client: "claude-code", Scopes: []string{"email", "profile"}, Issuer: "corp", Acr: "1",
		},
		refused: map[string]claims{
			"the default audience: aud":  {"aud": "account"},
			"an ID token: /typ":          {"typ": "ID"},
			"another client: /azp names": {"azp": "admin-cli"},
			"no roles: /realm_access":    {"realm_access": nil},
			"another realm: iss":         {"iss": "https://login.example.com/realms/other"},
		},
	},
	"Microsoft Entra ID": {
		want: &identityv1.Principal{
			Subject: "entra/aaaaaaaa-0000-1111-2222-bbbbbbbbbbbb", Owner: "entra/aaaaaaaa-0000-1111-2222-bbbbbbbbbbbb", Person: "entra/aaaaaaaa-0000-1111-2222-bbbbbbbbbbbb", Agent: "claude-code",
			Groups: []string{"22223333-cccc-4444-dddd-5555eeee6666"}, Client: "11112222-bbbb-3333-cccc-4444dddd5555", Scopes: []string{"Mcp.Call"}, Issuer: "entra",
		},
		refused: map[string]claims{
			"too many groups: omits groups":                {"groups": nil, "_claim_names": claims{"groups": "src1"}, "_claim_sources": claims{"src1": claims{"endpoint": "https://graph.microsoft.com/v1.0/users/x/getMemberObjects"}}},
			"too many groups, by the implicit flow: omits": {"groups": nil, "hasgroups": true},
			"no groups: /groups":                           {"groups": nil},
			"a token for Microsoft Graph: aud":             {"aud": "00000003-0000-0000-c000-000000000000"},
			"another tenant: /tid":                         {"tid": "99999999-0000-cccc-1111-dddd2222eeee"},
			"the issuer of another tenant: iss":            {"iss": "https://login.microsoftonline.com/99999999-0000-cccc-1111-dddd2222eeee/v2.0"},
			"version 1.0: iss":                             {"iss": "https://sts.windows.net/aaaabbbb-0000-cccc-1111-dddd2222eeee/", "ver": "1.0"},
			"no oid: /oid":                                 {"oid": nil},
			"another client: /azp names":                   {"azp": "99999999-bbbb-3333-cccc-4444dddd5555"},
		},
	},
	"Okta": {
		want: &identityv1.Principal{
			Subject: "okta/ana@example.com", Owner: "okta/ana@example.com", Person: "okta/ana@example.com", Agent: "claude-code", Groups: []string{"sre"}, Scopes: []string{"mcp", "openid"}, Issuer: "okta",
		},
		refused: map[string]claims{
			"a token of the organization server: iss": {"iss": "https://example.okta.com", "aud": "https://example.okta.com"},
			"the default audience: aud":               {"aud": "api://default"},
			"another client: /cid names":              {"cid": "0oa9"},
			"no groups: /groups":                      {"groups": nil},
		},
	},
	"Google": {
		want: &identityv1.Principal{
			Subject: "google/ana@example.com", Owner: "google/ana@example.com", Person: "google/ana@example.com", Agent: "assistant", Client: "1234987819200-abc.apps.googleusercontent.com", Issuer: "google",
		},
		refused: map[string]claims{
			"the address is not verified: /email_verified":    {"email_verified": false},
			"it is not known if it is verified: /email_veri":  {"email_verified": nil},
			"the verification is a text: /email_verified":     {"email_verified": "true"},
			"another organization: /hd":                       {"hd": "example.org"},
			"a private account: /hd":                          {"hd": nil, "email": "ana@gmail.com"},
			"another client: aud":                             {"aud": "999.apps.googleusercontent.com", "azp": "999.apps.googleusercontent.com"},
			"a client of another platform: /azp names":        {"azp": "1234987819200-android.apps.googleusercontent.com"},
			"the issuer without https, as in old tokens: iss": {"iss": "accounts.google.com"},
		},
	},
	"Auth0": {
		want: &identityv1.Principal{
			Subject: "auth0/auth0|6553da60a54af58e29493993", Owner: "auth0/auth0|6553da60a54af58e29493993", Person: "auth0/auth0|6553da60a54af58e29493993", Agent: "claude-code",
			Groups: []string{"sre"}, Client: "my_client_id", Scopes: []string{"openid", "profile"}, Issuer: "auth0",
		},
		refused: map[string]claims{
			"a token for userinfo: aud":              {"aud": "https://example.eu.auth0.com/userinfo"},
			"no roles: /https:~1~1example.com":       {"https://example.com/roles": nil},
			"another client: /azp names":             {"azp": "other"},
			"the issuer without the last slash: iss": {"iss": "https://example.eu.auth0.com"},
		},
	},
}

// serviceAccount returns the claims of a service account of Kubernetes.
func serviceAccount(namespace, name string) claims {
	return claims{"kubernetes.io": claims{"namespace": namespace, "serviceaccount": claims{"name": name}}}
}

func TestRecipes_MapTheTokensOfTheirProviders(t *testing.T) {
	t.Parallel()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	pages := readRecipes(t)
	for _, heading := range slices.Sorted(maps.Keys(pages)) {
		if _, ok := recipes[heading]; !ok {
			t.Errorf("no test checks the recipe %s", heading)
		}
	}
	for heading, r := range recipes {
		t.Run(heading, func(t *testing.T) {
			t.Parallel()
			set := loadRecipe(t, pages[heading], key)
			r.want.Tenant, r.want.Role = "default", authv1.TokenRole_TOKEN_ROLE_AGENT
			identity, refusal := set.Verify(documentedToken(t, heading, nil, key), time.Now())
			if refusal != nil {
				t.Fatal(refusal)
			}
			if diff := cmp.Diff(r.want, identity.Principal, protocmp.Transform(), protocmp.IgnoreFields(r.want, "auth_time")); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if hasTime := identity.Principal.GetAuthTime() != nil; hasTime != (heading == "Okta") { // only its tokens contain auth_time
				t.Errorf("the time of the authentication is %v", identity.Principal.GetAuthTime())
			}
			for name, changes := range r.refused {
				_, reason, _ := strings.Cut(name, ": ")
				identity, refusal := set.Verify(documentedToken(t, heading, changes, key), time.Now())
				if refusal == nil {
					t.Errorf("%s: accepted as %v", name, identity.Principal)
					continue
				}
				for word := range strings.FieldsSeq(reason) {
					if !strings.Contains(refusal.Error(), word) {
						t.Errorf("%s: the reason is %q, which does not contain %q", name, refusal, word)
					}
				}
			}
		})
	}
}

// readRecipes returns the configurations of recipesPage by their headings.
func readRecipes(t *testing.T) map[string]string {
	t.Helper()
	raw, err := os.ReadFile(recipesPage)
	if err != nil {
		t.Fatal(err)
	}
	block := regexp.MustCompile("(?s)```yaml\n(.*?)```")
	out := make(map[string]string)
	for _, section := range strings.Split(string(raw), "\n## ")[1:] {
		heading, text, _ := strings.Cut(section, "\n")
		found := block.FindAllStringSubmatch(text, -1)
		if len(found) != 1 {
			t.Fatalf("the section %s has %d configurations, want 1", heading, len(found))
		}
		out[heading] = found[0][1]
	}
	return out
}

// loadRecipe returns the issuer of a configuration, with a key. The file `ca` of the configuration is replaced by an
// existing one.
func loadRecipe(t *testing.T, text string, key *rsa.PrivateKey) *issuer.Set {
	t.Helper()
	dir := t.TempDir()
	ca := filepath.Join(dir, "ca.crt")
	text = regexp.MustCompile(`(?m)^( *ca:) .*$`).ReplaceAllString(text, "${1} "+ca)
	for file, content := range map[string]string{ca: "", filepath.Join(dir, "sluice.yaml"): text} {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	f, err := config.Load(filepath.Join(dir, "sluice.yaml"), noEnv)
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := identity.FromFile(f, noEnv)
	if err != nil || len(cfg.Issuers) != 1 {
		t.Fatalf("%d issuers, %v", len(cfg.Issuers), err)
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	mapping := proto.CloneOf(cfg.Issuers[0].Mapping)
	mapping.Keys = []*identityv1.IssuerKey{{Id: "k", PublicKey: public}}
	set, err := issuer.NewSet([]*identityv1.Issuer{mapping})
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// documentedToken returns the token of a provider, whose claims are in testdata/recipes. The times of the token are
// moved so that it was issued now.
func documentedToken(t *testing.T, heading string, changes claims, key *rsa.PrivateKey) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("testdata", "recipes", strings.ToLower(strings.ReplaceAll(heading, " ", "-"))+".json"))
	if err != nil {
		t.Fatal(err)
	}
	var out claims
	if err := json.Unmarshal(raw, &out); err != nil {
		t.Fatal(err)
	}
	issued, _ := out["iat"].(float64)
	merge(out, changes)
	for _, name := range []string{"iat", "nbf", "exp", "auth_time"} {
		switch at := out[name].(type) {
		case float64:
			out[name] = time.Now().Unix() + int64(at-issued)
		case int:
			out[name] = time.Now().Unix() + int64(at) - int64(issued)
		}
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.RS256, Key: jose.JSONWebKey{Key: key, KeyID: "k"}}, (&jose.SignerOptions{}).WithType("JWT"))
	if err != nil {
		t.Fatal(err)
	}
	if raw, err = json.Marshal(out); err != nil {
		t.Fatal(err)
	}
	signed, err := signer.Sign(raw)
	if err != nil {
		t.Fatal(err)
	}
	text, err := signed.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	return text
}
