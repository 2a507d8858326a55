package wasmagent

import (
	"testing"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
)

// A credential that is limited to some servers gives access only to agents that may use no other servers. Otherwise the
// agent could call, for the credential's holder, a server that the credential excludes.
func TestCanSee_CredentialsForSomeServers(t *testing.T) {
	t.Parallel()
	ana := func(servers ...string) *identityv1.Principal {
		return &identityv1.Principal{Tenant: "default", Subject: "ana", Agent: "cursor", Role: authv1.TokenRole_TOKEN_ROLE_AGENT, Servers: servers}
	}
	through := func(p *identityv1.Principal, chain ...*identityv1.Principal) *identityv1.Principal {
		p.Chain = chain
		return p
	}
	for _, c := range []struct {
		name       string
		p, creator *identityv1.Principal
		want       bool
	}{
		{"both without a limit", ana(), ana(), true},
		{"only the creator has a limit", ana(), ana("files"), true},
		{"the same limit", ana("files"), ana("files"), true},
		{"the creator has a narrower limit", ana("files", "mail"), ana("files"), true},
		{"the creator has a wider limit", ana("files"), ana("files", "mail"), false},
		{"the creator has no limit", ana("files"), ana(), false},
		{"the creator has other servers", ana("files"), ana("mail"), false},
		{"a delegator of the creator has a narrower limit", ana("files"), through(ana(), ana("files")), true},
		{"a delegator of the caller has a limit", through(ana(), ana("files")), ana(), false},
		{"one of two limits of the caller is exceeded", through(ana("files", "mail"), ana("mail")), ana("files"), false},
		{"an operator", &identityv1.Principal{Tenant: "default", Role: authv1.TokenRole_TOKEN_ROLE_OPERATOR}, ana(), true},
		{"another subject", &identityv1.Principal{Tenant: "default", Subject: "ben", Agent: "cursor"}, ana(), false},
		{"another tenant", &identityv1.Principal{Tenant: "acme", Subject: "ana", Agent: "cursor"}, ana(), false},
	} {
		if got := canSee(c.p, c.creator); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

// An agent has the OAuth scopes of its creator. A credential that lacks one of them does not give access to the agent.
// Otherwise the agent could make calls for the credential's holder that need this scope.
func TestCanSee_CredentialsWithScopes(t *testing.T) {
	t.Parallel()
	coder := func(scopes ...string) *identityv1.Principal {
		return &identityv1.Principal{
			Tenant: "default", Subject: "act:corp/coder/ana", Agent: "coder", Owner: "ana", Role: authv1.TokenRole_TOKEN_ROLE_AGENT, Issuer: "corp", Client: "cli", Scopes: scopes,
		}
	}
	planner := func(scopes ...string) *identityv1.Principal {
		p := coder(scopes...)
		p.Subject, p.Agent = "act:corp/planner/ana", "planner"
		return p
	}
	meshToken := coder()
	meshToken.Issuer, meshToken.Client = "", ""
	through := func(p *identityv1.Principal, chain ...*identityv1.Principal) *identityv1.Principal {
		p.Chain = chain
		return p
	}
	sandboxed := func(chain ...*identityv1.Principal) *identityv1.Principal {
		return through(&identityv1.Principal{Tenant: "default", Subject: "agent:default/1", Agent: "1", Owner: "ana"}, chain...)
	}
	operator := &identityv1.Principal{Tenant: "default", Subject: "olga", Role: authv1.TokenRole_TOKEN_ROLE_OPERATOR}
	for _, c := range []struct {
		name       string
		p, creator *identityv1.Principal
		want       bool
	}{
		{"the same scopes", coder("pay", "read"), coder("pay", "read"), true},
		{"more scopes", coder("pay", "read"), coder("pay"), true},
		{"one scope is missing", coder("read"), coder("pay", "read"), false},
		{"another scope", coder("payments"), coder("pay"), false},
		{"no scopes", coder(), coder("pay"), false},
		{"a token of the mesh", meshToken, coder("pay"), false},
		{"the creator has no scopes", coder("pay"), coder(), true},
		{"a prior actor with the scopes", planner("pay"), through(coder("pay"), planner("pay")), true},
		{"a prior actor without the scopes", planner(), through(coder("pay"), planner("pay")), false},
		{"a later actor of the same agent", through(coder("pay"), planner("pay")), coder("pay"), true},
		{"an agent of an agent", coder("pay"), sandboxed(coder("pay")), true},
		{"an agent of an agent, without the scopes", coder(), sandboxed(coder("pay")), false},
		{"the agent that created the agent", sandboxed(coder("pay")), sandboxed(coder("pay")), true},
		{"an operator", operator, coder("pay"), true},
	} {
		if got := canSee(c.p, c.creator); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

// An agent that uses the connections of a person is visible to callers that use the connections of the same person, and
// to operators and viewers, but only her own callers may use it. An agent without a person has no connections.
func TestCanUsePerson_IsOnlyForCallersOfThePerson(t *testing.T) {
	t.Parallel()
	bot := func(person string, chain ...*identityv1.Principal) *identityv1.Principal {
		return &identityv1.Principal{Tenant: "default", Subject: "bot", Agent: "dev", Owner: "ana", Person: person, Role: authv1.TokenRole_TOKEN_ROLE_AGENT, Chain: chain}
	}
	who := func(subject string, role authv1.TokenRole) *identityv1.Principal {
		return &identityv1.Principal{Tenant: "default", Subject: subject, Role: role}
	}
	const operator, viewer = authv1.TokenRole_TOKEN_ROLE_OPERATOR, authv1.TokenRole_TOKEN_ROLE_VIEWER
	sandboxed := bot("ana", bot("ana"))
	sandboxed.Subject = "agent:default/1"
	for _, c := range []struct {
		name           string
		p, creator     *identityv1.Principal
		canSee, canUse bool
	}{
		{"the same person", bot("ana"), bot("ana"), true, true},
		{"another person", bot("ben"), bot("ana"), false, false},
		{"no person", bot(""), bot("ana"), false, false},
		{"an agent without a person", bot("ana"), bot(""), true, true},
		{"an agent's agent", bot("ana"), sandboxed, true, true},
		{"an agent's agent, another person", bot("ben"), sandboxed, false, false},
		{"the person herself", who("ana", operator), bot("ana"), true, true},
		{"another operator", who("olga", operator), bot("ana"), true, false},
		{"a viewer", who("olga", viewer), bot("ana"), true, false},
		{"another operator, an agent without a person", who("olga", operator), bot(""), true, true},
		{"the person's own agent", who("ana", operator), who("ana", operator), true, true},
		{"the person's own agent, another operator", who("olga", operator), who("ana", operator), true, false},
	} {
		if got := canSee(c.p, c.creator); got != c.canSee {
			t.Errorf("%s: can see is %v, want %v", c.name, got, c.canSee)
		}
		if got := canUsePerson(c.p, c.creator); got != c.canUse {
			t.Errorf("%s: can use is %v, want %v", c.name, got, c.canUse)
		}
	}
}
