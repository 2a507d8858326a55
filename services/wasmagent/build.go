package wasmagent

import (
	"context"

	"github.com/sluice-mesh/sluice/services/internal/app"
	"github.com/sluice-mesh/sluice/services/internal/rpc"
)

// Build is the role's [app.Build].
func Build(_ context.Context, mesh app.Mesh) (rpc.Service, error) {
	return New(Config{Data: mesh.File.Path(mesh.File.Data)}, mesh.Log)
}
