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
