package principal_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/internal/principal"
)

func key(subject string) principal.Key { return principal.Key{Tenant: "acme", Subject: subject} }

// who returns a principal of the tenant acme. The owner may be empty.
func who(subject, owner string, chain ...*identityv1.Principal) *identityv1.Principal {
	return &identityv1.Principal{Tenant: "acme", Subject: subject, Owner: owner, Agent: "dev", TokenId: "t", Session: "s", Run: "r", Chain: chain}
}

func TestKeys_IgnoreTokenSessionAndRun(t *testing.T) {
	t.Parallel()
	p := who("ana", "")
	p.TokenId, p.Session, p.Run, p.Agent = "other", "other", "other", "other"
	if principal.Of(p) != principal.Of(who("ana", "")) || principal.Of(p) != key("ana") {
		t.Errorf("%+v", principal.Of(p))
	}
	if (principal.Key{Tenant: "other", Subject: "ana"}) == principal.Of(p) {
		t.Error("principals of two tenants have the same key")
	}
	if principal.Of(nil) != (principal.Key{}) || principal.Person(nil) != (principal.Key{}) || principal.Root(nil) != (principal.Key{}) {
		t.Error("no principal has a key")
	}
}

func TestPersonAndRoot_FindThePersonBehindACaller(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		caller       *identityv1.Principal
		person, root string
	}{
		"a person":                         {who("ana", ""), "ana", "ana"},
		"an agent of a person":             {who("bot", "ana"), "ana", "ana"},
		"an agent that an agent created":   {who("bot2", "bot", who("bot", "ana")), "bot", "ana"},
		"an agent at the end of a chain":   {who("bot3", "ben", who("bot2", ""), who("bot1", "ana")), "ben", "ana"},
		"a creator that works for no one":  {who("bot", "ben", who("ana", "")), "ben", "ana"},
		"an agent without an owner itself": {who("bot", "", who("ana", "")), "bot", "ana"},
	} {
		if got := principal.Person(tt.caller); got != key(tt.person) {
			t.Errorf("%s: the person is %+v", name, got)
		}
		if got := principal.Root(tt.caller); got != key(tt.root) {
			t.Errorf("%s: the root is %+v", name, got)
		}
		accounts := principal.AccountsOf(tt.caller)
		if got := accounts.Root(); got != key(tt.root) {
			t.Errorf("%s: the root of its accounts is %+v", name, got)
		}
	}
}

func TestAccountsOf_CountsAgainstEveryPrincipalAndPerson(t *testing.T) {
	t.Parallel()
	account := func(subject string, isPrincipal, isPerson bool) principal.Account {
		return principal.Account{Key: key(subject), Principal: isPrincipal, Person: isPerson}
	}
	for name, tt := range map[string]struct {
		caller *identityv1.Principal
		want   []principal.Account
	}{
		"a person":                  {who("ana", ""), []principal.Account{account("ana", true, true)}},
		"an agent of a person":      {who("bot", "ana"), []principal.Account{account("bot", true, false), account("ana", false, true)}},
		"its person is its creator": {who("bot", "ana", who("ana", "")), []principal.Account{account("bot", true, false), account("ana", true, true)}},
		"a longer chain": {who("bot3", "ana", who("bot2", "ana"), who("bot1", "ben")), []principal.Account{
			account("bot3", true, false), account("ana", false, true), account("bot2", true, false), account("bot1", true, false), account("ben", false, true),
		}},
		"a caller twice in its chain": {who("bot", "ana", who("bot", "ben"), who("ana", "bot")), []principal.Account{
			account("bot", true, true), account("ana", true, true), account("ben", false, true),
		}},
	} {
		accounts := principal.AccountsOf(tt.caller)
		if diff := cmp.Diff(tt.want, accounts.All()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		if accounts.Caller() != principal.Of(tt.caller) {
			t.Errorf("%s: the caller is %+v", name, accounts.Caller())
		}
	}
}

func TestAccountsOf_KeepsLongChains(t *testing.T) {
	t.Parallel()
	var chain []*identityv1.Principal
	want := []principal.Key{key("bot")}
	for i := range 20 {
		chain = append(chain, who(fmt.Sprint("bot", i), fmt.Sprint("person", i)))
	}
	want = append(want, key("ana"))
	for i := range 20 {
		want = append(want, key(fmt.Sprint("bot", i)), key(fmt.Sprint("person", i)))
	}
	accounts := principal.AccountsOf(who("bot", "ana", chain...))
	var got []principal.Key
	for _, a := range accounts.All() {
		got = append(got, a.Key)
	}
	if !slices.Equal(got, want) || accounts.Root() != key("person19") || accounts.Caller() != key("bot") {
		t.Errorf("%+v, the root is %+v", got, accounts.Root())
	}
}

func TestAccountsOfKey_IsOneAccount(t *testing.T) {
	t.Parallel()
	accounts := principal.AccountsOfKey(key("ana"))
	if diff := cmp.Diff([]principal.Account{{Key: key("ana"), Principal: true, Person: true}}, accounts.All()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if accounts.Caller() != key("ana") || accounts.Root() != key("ana") {
		t.Errorf("caller %+v, root %+v", accounts.Caller(), accounts.Root())
	}
}

func TestAccounts_ZeroValueHasNone(t *testing.T) {
	t.Parallel()
	var none principal.Accounts
	if len(none.All()) != 0 || none.Caller() != (principal.Key{}) || none.Root() != (principal.Key{}) {
		t.Errorf("%+v", none)
	}
}

// withPerson returns a principal of the tenant acme that uses the accounts of a person.
func withPerson(subject, person string, chain ...*identityv1.Principal) *identityv1.Principal {
	p := who(subject, "", chain...)
	p.Person, p.Role = person, authv1.TokenRole_TOKEN_ROLE_AGENT
	return p
}

// A caller uses the accounts of its person. Its owner is not enough, because operators can give any owner to a token. An
// agent of the mesh has the person of its creator, and no other.
func TestConnectionsOf_NeedsAPersonAndNotAnOwner(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		caller *identityv1.Principal
		want   principal.Key
	}{
		"an agent of a person":                                 {withPerson("bot", "ana"), key("ana")},
		"an agent with an owner only":                          {who("bot", "ana"), principal.Key{}},
		"a workload":                                           {withPerson("ci", ""), principal.Key{}},
		"an agent with prior actors":                           {withPerson("act:corp/b/ana", "ana", withPerson("act:corp/a/ana", "")), key("ana")},
		"an agent that a person created":                       {withPerson("agent:acme/1", "ana"), key("ana")},
		"an agent that a person's agent created":               {withPerson("agent:acme/1", "ana", withPerson("bot", "ana")), key("ana")},
		"an agent of a person's agent's agent":                 {withPerson("agent:acme/2", "ana", withPerson("agent:acme/1", "ana"), withPerson("bot", "ana")), key("ana")},
		"an agent with an owner that a person's agent created": {who("agent:acme/1", "ana", withPerson("bot", "ana")), principal.Key{}},
		"an agent that a workload created":                     {withPerson("agent:acme/1", "ci", withPerson("ci", "")), principal.Key{}},
		"an agent of a workload's agent":                       {withPerson("agent:acme/2", "ci", withPerson("agent:acme/1", "ci"), withPerson("ci", "")), principal.Key{}},
		"an agent that another person's agent created":         {withPerson("agent:acme/1", "ana", withPerson("bot", "ben")), principal.Key{}},
		"an agent that an act principal created":               {withPerson("agent:acme/1", "ana", withPerson("act:corp/b/ana", "ana"), withPerson("act:corp/a/ana", "")), key("ana")},
		"no caller":                                            {nil, principal.Key{}},
	} {
		if got := principal.ConnectionsOf(tt.caller); got != tt.want {
			t.Errorf("%s: the person is %+v, want %+v", name, got, tt.want)
		}
	}
}

// An agent that a person creates uses this person's accounts. An agent that another agent creates uses the same accounts
// as the other agent.
func TestActsFor_IsThePersonOrThePersonOfAnAgent(t *testing.T) {
	t.Parallel()
	person := func(role authv1.TokenRole) *identityv1.Principal {
		p := who("ana", "ben")
		p.Role = role
		return p
	}
	for name, tt := range map[string]struct {
		caller *identityv1.Principal
		want   principal.Key
	}{
		"an operator": {person(authv1.TokenRole_TOKEN_ROLE_OPERATOR), key("ana")},
		"an approver": {person(authv1.TokenRole_TOKEN_ROLE_APPROVER), key("ana")},
		"a viewer":    {person(authv1.TokenRole_TOKEN_ROLE_VIEWER), key("ana")},
		"no role":     {person(authv1.TokenRole_TOKEN_ROLE_UNSPECIFIED), principal.Key{}},
		"an agent":    {withPerson("bot", "ana"), key("ana")},
		"a workload":  {person(authv1.TokenRole_TOKEN_ROLE_AGENT), principal.Key{}},
		"no caller":   {nil, principal.Key{}},
	} {
		if got := principal.ActsFor(tt.caller); got != tt.want {
			t.Errorf("%s: the person is %+v, want %+v", name, got, tt.want)
		}
	}
}
