package policy_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/policy/internal/catalog"
)

const scopedDocument = `version: 1
name: scoped
default: deny
tools:
  read: {action: allow}
  write: {action: allow, needs_scope: [repo.write, repo.read]}
rules:
  - {name: admin, match: {tool: purge, server: "github*"}, action: allow, needs_scope: repo.admin}
`

// scopesText describes the scopes of servers in a response.
func scopesText(resp *policyv1.LeaseRevisionResponse) string {
	var out []string
	for _, one := range resp.GetNeededScopes() {
		out = append(out, one.GetServer()+": "+strings.Join(one.GetScopes(), " "))
	}
	return strings.Join(out, "; ")
}

// A gateway receives the scopes that rules need with each lease. After a change of the policy, it receives the new
// scopes with the notification of the change.
func TestLeaseRevision_ContainsTheScopesOfConfiguredServers(t *testing.T) {
	t.Parallel()
	dir := folder(t, scopedDocument)
	lib := newCatalogFixture(t, options{paths: []string{dir}, servers: map[string]catalog.Settings{"github": {}, "files": {}}})
	gateway := lib.openLeases()
	gateway.request(0)
	first := gateway.receive()
	const want = "files: repo.read repo.write; github: repo.admin repo.read repo.write"
	if diff := cmp.Diff(want, scopesText(first)); diff != "" {
		t.Errorf("the first lease (-want +got):\n%s", diff)
	}
	gateway.request(first.GetNumber())
	if renewed := gateway.receive(); scopesText(renewed) != want || renewed.GetEpoch() != first.GetEpoch() {
		t.Errorf("renewed: %v", renewed)
	}
	write(t, dir, "policy.yaml", strings.ReplaceAll(scopedDocument, ", needs_scope: [repo.write, repo.read]", ""))
	change := gateway.receive()
	for change.GetEpoch() == first.GetEpoch() {
		change = gateway.receive()
	}
	if diff := cmp.Diff("github: repo.admin", scopesText(change)); diff != "" {
		t.Errorf("after a change (-want +got):\n%s", diff)
	}
}

func TestDecideCall_NamesTheMissingScopes(t *testing.T) {
	t.Parallel()
	s := serve(t, options{paths: []string{folder(t, scopedDocument)}})
	caller := principal("ana")
	caller.Issuer, caller.Scopes = "corp", []string{"repo.read"}
	d := decide(t, s, caller, call("write"))
	if d.GetEffect() != deny || d.GetCode() != commonv1.Code_CODE_SCOPE_MISSING || d.GetRule().GetRule() != "tools.write" ||
		!cmp.Equal(d.GetNeededScopes(), []string{"repo.read", "repo.write"}) || !cmp.Equal(d.GetMissingScopes(), []string{"repo.write"}) {
		t.Errorf("%v", d)
	}
	caller.Scopes = []string{"repo.read", "repo.write"}
	if d := decide(t, s, caller, call("write")); d.GetEffect() != allow || d.GetNeededScopes() != nil {
		t.Errorf("with the scopes: %v", d)
	}
}
