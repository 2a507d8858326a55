// Command gateway runs the gateway, which serves MCP and sluice.gateway.v1.
package main

import (
	"context"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	"github.com/sluice-mesh/sluice/services/gateway"
	"github.com/sluice-mesh/sluice/services/internal/app"
	"github.com/sluice-mesh/sluice/services/internal/rpc"
	"github.com/sluice-mesh/sluice/services/internal/sandbox"
)

func main() {
	launcher := sandbox.RunLauncher()
	app.Role(authv1.Role_ROLE_GATEWAY, func(ctx context.Context, mesh app.Mesh) (rpc.Service, error) {
		mesh.Launcher = launcher
		return gateway.Build(ctx, mesh)
	})
}
