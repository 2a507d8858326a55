// Command policy serves sluice.policy.v1 and sluice.identity.v1 over gRPC.
package main

import (
	"context"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	"github.com/sluice-mesh/sluice/services/internal/app"
	"github.com/sluice-mesh/sluice/services/internal/rpc"
	"github.com/sluice-mesh/sluice/services/policy"
)

func main() { app.Role(authv1.Role_ROLE_POLICY, build) }

func build(_ context.Context, mesh app.Mesh) (rpc.Service, error) {
	cfg, err := policy.FromFile(mesh.File, mesh.Env)
	if err != nil {
		return nil, err
	}
	return policy.New(cfg, policy.Deps{Tokens: mesh.Tokens, Signer: mesh.Signer, Log: mesh.Log})
}
