package ratelimit

import (
	"context"

	"github.com/sluice-mesh/sluice/services/internal/app"
	"github.com/sluice-mesh/sluice/services/internal/rpc"
)

// Build is the [app.Build] of the rate limit service.
func Build(_ context.Context, mesh app.Mesh) (rpc.Service, error) {
	return New(FromFile(mesh.File), Deps{Log: mesh.Log})
}
