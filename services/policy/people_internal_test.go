package policy

import (
	"testing"

	"github.com/sluice-mesh/sluice/services/internal/config"
)

// People who can sign in may decide on calls if a group has the role approver or operator. The mesh does not know these
// people before they sign in.
func TestConfiguredPeople_OthersMayDecideIfPeopleSignInAsApprovers(t *testing.T) {
	t.Parallel()
	const issuer = "{name: corp, issuer: \"https://login.example.com\", audiences: [api]"
	const signIn = ", sign_in: {client_id: cli}"
	for issuers, want := range map[string]bool{
		"":           false,
		issuer + "}": false,
		issuer + signIn + ", people: {viewer: [all]}}":                                                                        false,
		issuer + signIn + ", people: {approver: [finance]}}":                                                                  true,
		issuer + signIn + ", people: {operator: [sre], viewer: [all]}}":                                                       true,
		issuer + "}, {name: b, issuer: \"https://b.example\", audiences: [api]" + signIn + ", people: {approver: [finance]}}": true,
	} {
		text := "auth: {tokens: [{name: ana, token: a-token-of-at-least-32-characters, role: approver}, {name: bot, token: another-token-of-32-characters-x, role: agent, owner: ana}], issuers: [" + issuers + "]}"
		f, err := config.Parse("sluice.yaml", []byte(text), func(string) (string, bool) { return "", false })
		if err != nil {
			t.Fatalf("%s: %v", issuers, err)
		}
		people := configuredPeople(f)
		approvers := people.approvers(false)
		if people.CanSignIn != want || approvers.OthersMayDecide != want {
			t.Errorf("%s: people can sign in: %v, others may decide: %v; want %v", issuers, people.CanSignIn, approvers.OthersMayDecide, want)
		}
		if len(approvers.Deciders) != 1 || approvers.Deciders[0].Name != "ana" || len(approvers.Callers) != 1 || approvers.Callers[0].Owner != "ana" {
			t.Errorf("%s: the holders of tokens are %+v", issuers, approvers)
		}
		if other := configuredPeople(&config.File{}); people.equal(other) || !people.equal(configuredPeople(f)) {
			t.Errorf("%s: the comparison with other people is wrong", issuers)
		}
	}
}
