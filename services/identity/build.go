package identity

import (
	"context"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/app"
	"github.com/sluice-mesh/sluice/services/internal/rpc"
)

// Build builds the identity service. It is an [app.Build].
func Build(ctx context.Context, mesh app.Mesh) (rpc.Service, error) {
	cfg, err := FromFile(mesh.File, mesh.Env)
	if err != nil {
		return nil, err
	}
	policy, err := mesh.Conn(authv1.Role_ROLE_POLICY)
	if err != nil {
		return nil, err
	}
	deps := Deps{
		Tokens: mesh.Tokens, Policy: policyv1.NewPolicyServiceClient(policy), Log: mesh.Log,
		Meter: mesh.Telemetry.Meters.Meter("github.com/sluice-mesh/sluice/services/identity"),
	}
	if mesh.Reload != nil {
		deps.Reload = func() (Identities, error) {
			f, err := mesh.Reload()
			if err != nil {
				return Identities{}, err
			}
			return identitiesOf(f, mesh.Env)
		}
	}
	return New(ctx, cfg, deps)
}
