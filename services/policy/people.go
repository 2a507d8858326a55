package policy

import (
	"slices"

	"google.golang.org/protobuf/proto"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/internal/config"
	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
)

// People contains the principals that have tokens in the configuration. These are the people who may approve calls, and
// the agents whose calls may need an approval. The running service reads them again at intervals.
type People struct {
	Tokens []*identityv1.Token
	// CanSignIn is true if people without a configured token can sign in as approvers or operators.
	CanSignIn bool
}

// configuredPeople returns the principals that have tokens in a configuration.
func configuredPeople(f *config.File) People {
	var out People
	for _, t := range f.Auth.Tokens {
		out.Tokens = append(out.Tokens, f.TokenMessage(t))
	}
	for i := range f.Auth.Issuers {
		one := &f.Auth.Issuers[i]
		out.CanSignIn = out.CanSignIn || one.SignIn != nil && len(one.People["operator"])+len(one.People["approver"]) > 0
	}
	return out
}

func (p People) equal(other People) bool {
	return p.CanSignIn == other.CanSignIn && slices.EqualFunc(p.Tokens, other.Tokens, func(a, b *identityv1.Token) bool { return proto.Equal(a, b) })
}

// approvers returns the principals that have configured tokens. Unless people can sign in, the result contains everyone
// who may approve calls, because all tokens that are not in the configuration belong to agents.
func (p People) approvers(ownersMayApprove bool) *engine.Approvers {
	out := &engine.Approvers{OwnersMayApprove: ownersMayApprove, OthersMayDecide: p.CanSignIn}
	for _, t := range p.Tokens {
		holder := engine.Principal{Tenant: t.GetTenant(), Name: t.GetSubject(), Agent: t.GetAgent(), Groups: t.GetGroups()}
		switch t.GetRole() { //nolint:exhaustive // holders of other roles neither make calls nor approve them
		case authv1.TokenRole_TOKEN_ROLE_OPERATOR, authv1.TokenRole_TOKEN_ROLE_APPROVER:
			out.Deciders = append(out.Deciders, holder)
		case authv1.TokenRole_TOKEN_ROLE_AGENT:
			out.Callers = append(out.Callers, engine.OwnedAgent{Principal: holder, Owner: t.GetOwner()})
		}
	}
	return out
}
