package config_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/internal/config"
)

// parse returns the configuration in a text.
func parse(t *testing.T, text string) *config.File {
	t.Helper()
	f, err := config.Parse("sluice.yaml", []byte(text), func(string) (string, bool) { return "", false })
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestIssuers_Defaults(t *testing.T) {
	t.Parallel()
	f := parse(t, `
public_url: https://mcp.example.com/
auth:
  issuers:
    - {name: corp, issuer: https://login.example.com, owner: subject, agent: {claim: /azp}}
`)
	i := f.Auth.Issuers[0]
	if i.Subject != "corp/{/sub}" || i.Owner != i.Subject || i.Tenant != "default" || *i.Leeway != 30*time.Second || i.MaxLife != 2*time.Hour || i.Agent.Unknown != "refuse" || len(i.Algorithms) != 4 {
		t.Errorf("the issuer is %+v", i)
	}
	if got := f.Resource(); got != "https://mcp.example.com/mcp" {
		t.Errorf("the resource is %q", got)
	}
}

func TestIssuers_RequiredValues(t *testing.T) {
	t.Parallel()
	f := parse(t, `
auth:
  issuers:
    - name: corp
      issuer: https://login.example.com
      audiences: [api]
      require: {/email_verified: true, /hd: example.com, /ref: [refs/heads/main, "refs/tags/*"], /yes: "true"}
`)
	got := f.Auth.Issuers[0].Require
	if v := got["/email_verified"]; v.Equals == nil || !*v.Equals || v.Patterns != nil {
		t.Errorf("true is %+v", v)
	}
	for claim, want := range map[string][]string{"/hd": {"example.com"}, "/ref": {"refs/heads/main", "refs/tags/*"}, "/yes": {"true"}} {
		if v := got[claim]; v.Equals != nil || !slices.Equal(v.Patterns, want) {
			t.Errorf("%s is %+v, want %q", claim, v, want)
		}
	}
}

func TestIssuers_ProblemsNameTheKey(t *testing.T) {
	t.Parallel()
	const valid = "name: corp, issuer: https://login.example.com, audiences: [api]"
	second := func(text string) string { return "{" + valid + "}, {" + text + "}" }
	for issuers, want := range map[string]string{
		"{name: Corp, issuer: https://login.example.com, audiences: [api]}":                    `auth.issuers[0].name: "Corp" is not a name`,
		"{name: corp, issuer: http://login.example.com, audiences: [api]}":                     `auth.issuers[0].issuer: "http://login.example.com" is not https`,
		"{name: corp, issuer: login.example.com, audiences: [api]}":                            `auth.issuers[0].issuer: "login.example.com" is not a URL`,
		"{name: corp, issuer: https://login.example.com}":                                      "auth.issuers[0].audiences: is missing",
		"{" + valid + ", algorithms: [HS256]}":                                                 `auth.issuers[0].algorithms[0]: "HS256" is not one of RS256`,
		"{" + valid + ", leeway: 1h}":                                                          "auth.issuers[0].leeway: 1h0m0s is not between",
		"{" + valid + ", max_life: 720h}":                                                      "auth.issuers[0].max_life: 720h0m0s is not between",
		"{" + valid + ", subject: \"{sub}\"}":                                                  "auth.issuers[0].subject: the JSON Pointer",
		"{" + valid + ", subject: ana}":                                                        "auth.issuers[0].subject: the template contains no claim",
		"{" + valid + ", owner: ana}":                                                          "auth.issuers[0].owner: the template contains no claim",
		"{" + valid + ", require: {email_verified: true}}":                                     "auth.issuers[0].require.email_verified: the JSON Pointer",
		"{" + valid + ", require: {/n: 1}}":                                                    "wanted true, false, a text or a list of texts",
		"{" + valid + ", groups: {claim: roles}}":                                              "auth.issuers[0].groups.claim: the JSON Pointer",
		"{" + valid + ", agent: {claim: /azp, unknown: x}}":                                    `auth.issuers[0].agent.unknown: "x" is not refuse or claim`,
		"{" + valid + ", tenant: A}":                                                           `auth.issuers[0].tenant: "A" is not a name`,
		"{" + valid + ", tenants: {claim: /org}}":                                              "auth.issuers[0].tenants.map: is empty",
		"{" + valid + ", tenant: a, tenants: {claim: /org, map: {a: a}}}":                      "auth.issuers[0].tenants: set either tenant or tenants",
		"{" + valid + ", delegation: may_act}":                                                 `auth.issuers[0].delegation: "may_act" is not act`,
		"{" + valid + ", delegation: act, subject: \"{/email}\"}":                              "auth.issuers[0].subject: must contain no claim except {/sub}",
		"{" + valid + ", delegation: act, owner: \"corp/{/manager}\"}":                         "auth.issuers[0].owner: must be subject or absent",
		"{" + valid + ", delegation: act, agent: {claim: /client_id}}":                         `auth.issuers[0].agent.claim: "/client_id" is not /act/sub`,
		"{" + valid + ", people: {operator: [sre]}}":                                           "auth.issuers[0].people: has no effect without sign_in",
		"{" + valid + ", sign_in: {client_id: cli}}":                                           "auth.issuers[0].sign_in: lets no person sign in",
		"{" + valid + ", people: {agent: [sre]}, sign_in: {client_id: cli}}":                   `auth.issuers[0].people.agent: "agent" is not one of viewer, approver, operator`,
		"{" + valid + ", people: {viewer: []}, sign_in: {client_id: cli}}":                     "auth.issuers[0].people.viewer: is empty",
		"{" + valid + ", people: {viewer: [a]}, sign_in: {}}":                                  "auth.issuers[0].sign_in.client_id: is missing",
		"{" + valid + ", people: {viewer: [a]}, sign_in: {client_id: api}}":                    `auth.issuers[0].sign_in.client_id: "api" is also one of audiences`,
		"{" + valid + ", people: {viewer: [a]}, sign_in: {client_id: cli, session: 48h}}":      "auth.issuers[0].sign_in.session: 48h0m0s is not between",
		"{" + valid + ", people: {viewer: [a]}, sign_in: {client_id: cli, scopes: [\"a b\"]}}": `auth.issuers[0].sign_in.scopes[1]: "a b" is not a scope`,
		second("name: corp, issuer: https://other.example.com, audiences: [api]"):              `auth.issuers[1].name: "corp" is the name of two issuers`,
		second("name: other, issuer: https://login.example.com, audiences: [api]"):             "auth.issuers[1].issuer: ",
		second("name: b, issuer: https://b.example, audiences: [api], subject: \"{/email}\""):  "auth.issuers[1].realm: the issuers \"corp\" and \"b\" could give one subject or owner to two people",
		second("name: b, issuer: https://b.example, audiences: [api], owner: \"{/mgr}\""):      "auth.issuers[1].realm: the issuers \"corp\" and \"b\" could give one subject or owner to two people",
	} {
		_, err := config.Parse("sluice.yaml", []byte("auth: {issuers: ["+issuers+"]}"), func(string) (string, bool) { return "", false })
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s\n got %v\nwant %s", issuers, err, want)
		}
	}
}

func TestScopeStepUp_ListsClients(t *testing.T) {
	t.Parallel()
	const issuers = "issuers: [{name: corp, issuer: https://login.example.com, audiences: [api]}]"
	f := parse(t, "auth: {"+issuers+", scope_step_up: [cli, 'https://client.example/metadata']}")
	if got := f.Auth.ScopeStepUp; !slices.Equal(got, []string{"cli", "https://client.example/metadata"}) {
		t.Errorf("the clients are %q", got)
	}
	for text, want := range map[string]string{
		"scope_step_up: [cli]":                                            "auth.scope_step_up: has no effect without issuers",
		issuers + ", scope_step_up: [cli, cli]":                           `auth.scope_step_up[1]: "cli" is listed twice`,
		issuers + ", scope_step_up: ['']":                                 "auth.scope_step_up[0]: is empty or longer than 256 bytes",
		issuers + ", scope_step_up: [" + strings.Repeat("x, ", 64) + "x]": "auth.scope_step_up: 65 clients are more than 64",
	} {
		_, err := config.Parse("sluice.yaml", []byte("auth: {"+text+"}"), func(string) (string, bool) { return "", false })
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s\n got %v\nwant %s", text, err, want)
		}
	}
}

func TestIssuers_PublicURLHasNoPath(t *testing.T) {
	t.Parallel()
	_, err := config.Parse("sluice.yaml", []byte("public_url: https://example.com/tools"), func(string) (string, bool) { return "", false })
	if err == nil || !strings.Contains(err.Error(), `public_url: has the path "/tools"`) {
		t.Errorf("got %v", err)
	}
}

// The keys of some applications have a URL with a query, for example at Microsoft Entra ID.
func TestIssuers_KeySetMayHaveAQuery(t *testing.T) {
	t.Parallel()
	f := parse(t, `auth: {issuers: [{name: a, issuer: https://a.example, audiences: [x], key_set: "https://a.example/keys?appid=1"}]}`)
	if got := f.Auth.Issuers[0].KeySet; got != "https://a.example/keys?appid=1" {
		t.Errorf("key_set is %q", got)
	}
}

// Two issuers may give the same subject if they say that they identify the same people, or if their tenants differ.
func TestIssuers_SubjectsOfTwoIssuers(t *testing.T) {
	t.Parallel()
	for _, issuers := range []string{
		`{name: a, issuer: https://a.example, audiences: [x]}, {name: b, issuer: https://b.example, audiences: [x]}`,
		`{name: a, issuer: https://a.example, audiences: [x], subject: "{/sub}", realm: staff}, {name: b, issuer: https://b.example, audiences: [x], subject: "{/sub}", realm: staff}`,
		`{name: a, issuer: https://a.example, audiences: [x], subject: "{/sub}", tenant: a}, {name: b, issuer: https://b.example, audiences: [x], subject: "{/sub}", tenant: b}`,
	} {
		if got := parse(t, "auth: {issuers: ["+issuers+"]}"); len(got.Auth.Issuers) != 2 {
			t.Errorf("%s: %d issuers", issuers, len(got.Auth.Issuers))
		}
	}
}

func TestIssuers_Delegation(t *testing.T) {
	t.Parallel()
	for _, more := range []string{"", ", owner: subject, agent: {claim: /act/sub, names: {id: bot}}", `, subject: "people/{/sub}", realm: staff`} {
		f := parse(t, "auth: {issuers: [{name: corp, issuer: https://login.example.com, audiences: [api], delegation: act"+more+"}]}")
		if got := f.Auth.Issuers[0].Delegation; got != "act" {
			t.Errorf("%s: delegation is %q", more, got)
		}
	}
}
