package identity_test

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/identity"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
	"github.com/sluice-mesh/sluice/services/internal/rpc/rpctest"
)

// twoIssuers is the configuration of one issuer for the tenant "default" and one for the tenant "acme". No server
// listens at their addresses.
const twoIssuers = `    - {name: bot, token: ` + oneText + `, role: agent}
  issuers:
    - {name: corp, issuer: "http://127.0.0.1:1/corp", owner: subject}
    - {name: acme, issuer: "http://127.0.0.1:1/acme", owner: subject, tenant: acme}
public_url: https://mcp.example.com
`

// An operator of the tenant "default" sees all issuers and why their keys can't be fetched. An operator of another tenant
// sees only issuers of that tenant, and not the reason, because it may contain hosts of the installation's network.
func TestListIssuers_ReturnsIssuersOfTheCallersTenant(t *testing.T) {
	t.Parallel()
	s := serveIssuers(t)
	list := func(operator string) []*identityv1.IssuerStatus {
		resp, err := identityv1.NewIdentityServiceClient(s.Person(t, operator)).ListIssuers(t.Context(), new(identityv1.ListIssuersRequest))
		if err != nil {
			t.Fatal(err)
		}
		return resp.GetIssuers()
	}
	eventually.Holds(t, "the fetches have failed", func() bool {
		for _, one := range list("operator") {
			if one.GetProblem() == "" {
				return false
			}
		}
		return true
	})
	all := list("operator")
	if len(all) != 2 || all[0].GetName() != "corp" || all[1].GetName() != "acme" || !strings.Contains(all[1].GetProblem(), "127.0.0.1") {
		t.Errorf("the operator sees %v", all)
	}
	own := list("acme-operator")
	if len(own) != 1 || own[0].GetName() != "acme" || own[0].GetProblem() == "" || strings.Contains(own[0].GetProblem(), "127.0.0.1") {
		t.Errorf("the operator of the tenant acme sees %v", own)
	}
}

func TestExplainJWT_RefusesOperatorsOfOtherTenants(t *testing.T) {
	t.Parallel()
	s := serveIssuers(t)
	req := &identityv1.ExplainJWTRequest{Token: "no.jwt.here"}
	resp, err := identityv1.NewIdentityServiceClient(s.Person(t, "operator")).ExplainJWT(t.Context(), req)
	if steps := resp.GetSteps(); err != nil || len(steps) == 0 || !steps[len(steps)-1].GetRefused() {
		t.Errorf("the operator gets %v, %v", resp, err)
	}
	_, err = identityv1.NewIdentityServiceClient(s.Person(t, "acme-operator")).ExplainJWT(t.Context(), req)
	rpctest.WantStatus(t, err, codes.PermissionDenied, "TENANT_REFUSED")
}

func serveIssuers(t *testing.T) *rpctest.Server {
	t.Helper()
	cfg, err := identity.FromFile(load(t, twoIssuers, nil), noEnv)
	if err != nil {
		t.Fatal(err)
	}
	return serve(t, options{tokens: tokensOfTwoTenants(), issuers: cfg.Issuers})
}
