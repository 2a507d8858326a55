package policy

import (
	"context"

	"github.com/sluice-mesh/sluice/services/internal/app"
	"github.com/sluice-mesh/sluice/services/internal/rpc"
)

// Build implements [app.Build] for the policy service.
func Build(ctx context.Context, mesh app.Mesh) (rpc.Service, error) {
	cfg, err := FromFile(mesh.File, mesh.Env)
	if err != nil {
		return nil, err
	}
	return New(ctx, cfg, Deps{Tokens: mesh.Tokens, Signer: mesh.Signer, Log: mesh.Log})
}
