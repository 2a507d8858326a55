// Command approval serves sluice.approval.v1 over gRPC.
package main

import (
	"context"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	"github.com/sluice-mesh/sluice/services/approval"
	"github.com/sluice-mesh/sluice/services/internal/app"
	"github.com/sluice-mesh/sluice/services/internal/rpc"
)

func main() { app.Role(authv1.Role_ROLE_APPROVAL, build) }

func build(ctx context.Context, mesh app.Mesh) (rpc.Service, error) {
	cfg, err := approval.FromFile(mesh.File, mesh.Env)
	if err != nil {
		return nil, err
	}
	return approval.New(ctx, cfg, approval.Deps{
		Tokens: mesh.Tokens, Meter: mesh.Telemetry.Meters.Meter("github.com/sluice-mesh/sluice/services/approval"), Log: mesh.Log,
	})
}
