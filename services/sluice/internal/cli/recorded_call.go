package cli

import (
	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
)

// recordedCall returns the call in a record, or nil if the policy service does not evaluate such calls.
func recordedCall(r *gatewayv1.Record) *policyv1.RecordedCall {
	who := r.GetPrincipal()
	if r.GetServer() == "" || r.GetMethod() == "" || who.GetSubject() == "" {
		return nil
	}
	subject := recordedPrincipal(who)
	for _, p := range who.GetChain() {
		subject.Chain = append(subject.Chain, recordedPrincipal(p))
	}
	return &policyv1.RecordedCall{
		Call:    &policyv1.Call{Server: r.GetServer(), Method: r.GetMethod(), Name: r.GetTool(), DefinitionDigest: r.GetDefinitionDigest()},
		Subject: subject, Count: 1, DecisionId: r.GetDecisionId(),
	}
}

// recordedPrincipal returns those parts of a recorded principal on which decisions can depend. The policy service does
// not use the role.
func recordedPrincipal(p *identityv1.Principal) *identityv1.Principal {
	return &identityv1.Principal{Tenant: p.GetTenant(), Subject: p.GetSubject(), Agent: p.GetAgent(), Owner: p.GetOwner(), Role: authv1.TokenRole_TOKEN_ROLE_AGENT}
}
