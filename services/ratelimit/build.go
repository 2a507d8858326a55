package ratelimit

import (
	"context"

	"github.com/sluice-mesh/sluice/services/internal/app"
	"github.com/sluice-mesh/sluice/services/internal/rpc"
)

// Build builds the rate limit service. It is an [app.Build].
func Build(_ context.Context, mesh app.Mesh) (rpc.Service, error) {
	return New(FromFile(mesh.File), Deps{Log: mesh.Log})
}
