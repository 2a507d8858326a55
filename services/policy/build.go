package policy

import (
	"context"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	"github.com/sluice-mesh/sluice/services/internal/app"
	"github.com/sluice-mesh/sluice/services/internal/rpc"
)

// Build implements [app.Build] for the policy service.
func Build(ctx context.Context, mesh app.Mesh) (rpc.Service, error) {
	cfg, err := FromFile(mesh.File, mesh.Env)
	if err != nil {
		return nil, err
	}
	deps := Deps{Tokens: mesh.Tokens, Signer: mesh.Signer, Log: mesh.Log}
	if cfg.Changes != nil {
		approvals, err := mesh.Conn(authv1.Role_ROLE_APPROVAL)
		if err != nil {
			return nil, err
		}
		deps.Approvals = approvalv1.NewApprovalServiceClient(approvals)
	}
	if mesh.Reload != nil {
		deps.Reload = func() (People, error) {
			f, err := mesh.Reload()
			if err != nil {
				return People{}, err
			}
			return configuredPeople(f), nil
		}
	}
	return New(ctx, cfg, deps)
}
