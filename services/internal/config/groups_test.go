package config_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-mesh/sluice/services/internal/config"
)

// The key `groups` lists a subject. A token of another tenant with the same subject name is not in these groups.
func TestGroupsOf_AppliesOnlyToHomeTenant(t *testing.T) {
	t.Parallel()
	f, err := config.Load(write(t, `
auth:
  tokens:
    - {name: ana-1, token: x, subject: ana, groups: [ops, finance], role: operator}
    - {name: ana-2, token: x, subject: ana, role: approver}
    - {name: foreign, token: x, tenant: acme, subject: ana, groups: [shop], role: approver}
    - {name: ana, token: x, subject: ben, role: agent}
groups: {legal: [ana], finance: [ana, carl], admins: [foreign, ana-1]}
`), noEnv)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string][]string{"ana-1": {"ops", "finance", "legal"}, "ana-2": {"finance", "legal"}, "foreign": {"shop"}, "ana": nil}
	got := make(map[string][]string)
	for _, token := range f.Auth.Tokens {
		got[token.Name] = f.GroupsOf(token)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"ops", "finance"}, f.Auth.Tokens[0].Groups); diff != "" {
		t.Errorf("the token's own changed (-want +got):\n%s", diff)
	}
}

func TestWarnings(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]string{
		"approvals: {owner_may_approve: true}": {config.OwnerMayApproveWarning}, "approvals: {owner_may_approve: false}": nil,
	} {
		f, err := config.Load(write(t, text), noEnv)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, f.Warnings()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", text, diff)
		}
	}
}
