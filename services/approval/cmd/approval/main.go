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
	return approval.New(ctx, approval.FromFile(mesh.File), approval.Deps{Tokens: mesh.Tokens, Log: mesh.Log})
}
