// Command ratelimit serves sluice.ratelimit.v1 over gRPC.
package main

import (
	"context"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	"github.com/sluice-mesh/sluice/services/internal/app"
	"github.com/sluice-mesh/sluice/services/internal/rpc"
	"github.com/sluice-mesh/sluice/services/ratelimit"
)

func main() { app.Role(authv1.Role_ROLE_RATELIMIT, build) }

func build(_ context.Context, mesh app.Mesh) (rpc.Service, error) {
	return ratelimit.New(ratelimit.FromFile(mesh.File), ratelimit.Deps{Log: mesh.Log})
}
