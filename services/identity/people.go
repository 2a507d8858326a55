package identity

import (
	"slices"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
)

// peopleRoles returns the roles that a session can have. The role with the fewest rights is first.
func peopleRoles() []authv1.TokenRole {
	return []authv1.TokenRole{authv1.TokenRole_TOKEN_ROLE_VIEWER, authv1.TokenRole_TOKEN_ROLE_APPROVER, authv1.TokenRole_TOKEN_ROLE_OPERATOR}
}

// rolesOf returns the roles that a person with the given groups may have. The role with the fewest rights is first.
func (s *SignIn) rolesOf(groups []string) []authv1.TokenRole {
	return slices.DeleteFunc(peopleRoles(), func(role authv1.TokenRole) bool {
		return !slices.ContainsFunc(s.Groups[role], func(group string) bool { return slices.Contains(groups, group) })
	})
}

// allowsSession reports whether the configuration still allows the role of a session. One of the session's groups must
// have this role. The groups of t are the groups at the sign-in and the groups that the configuration gives to the
// subject. issuerURL is the URL of the issuer at the time of the sign-in.
func (i Identities) allowsSession(t *identityv1.Token, issuerURL string) bool {
	at := slices.IndexFunc(i.Issuers, func(one Issuer) bool { return one.Mapping.GetName() == t.GetIssuer() })
	return at >= 0 && i.Issuers[at].Mapping.GetIssuer() == issuerURL && i.Issuers[at].isOf(t.GetTenant()) && slices.Contains(i.Issuers[at].SignIn.rolesOf(t.GetGroups()), t.GetRole())
}
