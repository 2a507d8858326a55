package identity

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/identity/internal/store"
	"github.com/sluice-mesh/sluice/services/internal/authn"
)

// errNotAgentToken means that the configuration has no token with the given name that the operator may import.
var errNotAgentToken = errors.New("the configuration has no token of an agent with this name in your tenant")

// ImportTokens implements identityv1.IdentityServiceServer.
func (s *Service) ImportTokens(ctx context.Context, req *identityv1.ImportTokensRequest) (*identityv1.ImportTokensResponse, error) {
	caller, expires := authn.CallerOf(ctx), req.GetExpires().AsTime()
	if left := time.Until(expires); left < minTokenLife || left > maxTokenLife+clockTolerance {
		return nil, tokenStatus(fmt.Errorf("%w: it must expire between 1 minute and 1 year from now", errInvalidToken))
	}
	chosen, err := s.importable(ctx, caller, req.GetNames())
	if err != nil {
		return nil, tokenStatus(err)
	}
	resp := new(identityv1.ImportTokensResponse)
	if len(chosen) == 0 {
		return resp, nil
	}
	for i := range chosen {
		chosen[i].Expires, chosen[i].CreatedByTenant, chosen[i].CreatedBy = expires, caller.Tenant(), caller.Person.GetSubject()
	}
	stored, set, err := s.store.ImportConfigured(ctx, chosen)
	if err != nil {
		return nil, tokenStatus(err)
	}
	if err := s.publish(set); err != nil {
		return nil, err
	}
	for i := range stored {
		s.deps.Log.InfoContext(ctx, "an operator has imported a token of the configuration", "token", stored[i].Name, "tenant", stored[i].Tenant, "agent", stored[i].Agent, "expires", expires, "operator", caller.Person.GetSubject(), "operator_tenant", caller.Tenant())
		resp.Tokens = append(resp.Tokens, packListed(&stored[i], caller))
	}
	return resp, nil
}

// importable returns the configured tokens of agents that have the given names. If there are no names, it returns the
// tokens of agents in the caller's tenant that are not stored yet. It returns an error if the caller may not import one
// of the named tokens.
func (s *Service) importable(ctx context.Context, caller *authn.Caller, names []string) ([]store.Token, error) {
	stored, err := s.store.Tokens(ctx)
	if err != nil {
		return nil, err
	}
	isStored := func(name string) bool {
		return slices.ContainsFunc(stored, func(t store.Token) bool { return t.Name == name })
	}
	var chosen []store.Token
	configured := s.tokens.identities()
	for _, r := range configured.Tokens {
		t := r.GetToken()
		isWanted := slices.Contains(names, t.GetName()) || len(names) == 0 && t.GetTenant() == caller.Tenant() && !isStored(t.GetName())
		if isWanted && t.GetRole() == authv1.TokenRole_TOKEN_ROLE_AGENT && (t.GetTenant() == caller.Tenant() || caller.OperatesInstallation()) {
			chosen = append(chosen, store.Token{
				Name: t.GetName(), Tenant: t.GetTenant(), Subject: t.GetSubject(), Agent: t.GetAgent(), Owner: t.GetOwner(), Groups: configured.ownGroups(t), Servers: t.GetServers(),
				Role: t.GetRole(), SHA256: [32]byte(r.GetSha256()),
			})
		}
	}
	for _, name := range names {
		if !slices.ContainsFunc(chosen, func(t store.Token) bool { return t.Name == name }) {
			return nil, fmt.Errorf("%s: %w: %w", name, store.ErrTokenUnknown, errNotAgentToken)
		}
	}
	slices.SortFunc(chosen, func(a, b store.Token) int { return cmp.Compare(a.Name, b.Name) })
	return chosen, nil
}

// ownGroups returns the groups of a configured token, except the groups that the key `groups` gives to its subject.
// Those groups are not stored, because they change with the configuration.
func (i Identities) ownGroups(t *identityv1.Token) []string {
	given := i.groupsOf(&identityv1.Token{Tenant: t.GetTenant(), Subject: t.GetSubject()})
	return slices.DeleteFunc(slices.Clone(t.GetGroups()), func(group string) bool { return slices.Contains(given, group) })
}
