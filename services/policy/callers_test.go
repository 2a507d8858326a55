package policy_test

import (
	"testing"

	"google.golang.org/grpc/codes"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
)

func TestCallersAreEnforcedAndTheRestIsUnimplemented(t *testing.T) {
	t.Parallel()
	s := serve(t, options{})
	s.CheckCallers(t, "sluice.policy.v1",
		"sluice.policy.v1.PolicyService.Apply",
		"sluice.policy.v1.PolicyService.CheckServer",
		"sluice.policy.v1.PolicyService.Decide",
		"sluice.policy.v1.PolicyService.Explain",
		"sluice.policy.v1.PolicyService.FilterTools",
		"sluice.policy.v1.PolicyService.Get",
		"sluice.policy.v1.PolicyService.Lint",
		"sluice.policy.v1.PolicyService.Watch",
	)
	s.CheckCallers(t, "sluice.identity.v1",
		"sluice.identity.v1.IdentityService.CreateToken",
		"sluice.identity.v1.IdentityService.ListTokens",
		"sluice.identity.v1.IdentityService.RevokeToken",
		"sluice.identity.v1.IdentityService.Watch",
	)
}

func TestAnAgentIsRefusedBeforeItLearnsWhatIsOffered(t *testing.T) {
	t.Parallel()
	s := serve(t, options{})
	_, err := policyv1.NewCatalogServiceClient(s.Person(t, "agent")).ListServers(t.Context(), new(policyv1.ListServersRequest))
	wantStatus(t, err, codes.PermissionDenied, "CALLER_REFUSED")
	_, err = policyv1.NewCatalogServiceClient(s.Person(t, "viewer")).ListServers(t.Context(), new(policyv1.ListServersRequest))
	wantStatus(t, err, codes.Unimplemented, "")
	_, err = policyv1.NewPolicyServiceClient(s.Person(t, "agent")).Explain(t.Context(), new(policyv1.ExplainRequest))
	wantStatus(t, err, codes.PermissionDenied, "CALLER_REFUSED")
}

func TestTheRoleServes(t *testing.T) {
	t.Parallel()
	serve(t, options{}).CheckHealth(t, "policy")
}
