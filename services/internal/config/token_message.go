package config

import (
	"slices"
	"strings"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
)

// TokenMessage returns a configured token in the form of the API, without its secret. It resolves no references.
func (f *File) TokenMessage(t Token) *identityv1.Token {
	return &identityv1.Token{
		Name: t.Name, Tenant: t.Tenant, Subject: t.Subject, Agent: t.Agent, Owner: t.Owner, Groups: f.GroupsOf(t),
		Servers: slices.Compact(slices.Sorted(slices.Values(t.Servers))), UsesConnections: t.Role == "agent" && t.Owner != "",
		Role: authv1.TokenRole(authv1.TokenRole_value["TOKEN_ROLE_"+strings.ToUpper(t.Role)]), Configured: true,
	}
}
