package wasmagent

import (
	"context"

	"github.com/sluice-mesh/sluice/services/internal/app"
	"github.com/sluice-mesh/sluice/services/internal/rpc"
)

// Build is the role's [app.Build].
func Build(context.Context, app.Mesh) (rpc.Service, error) { return New(), nil }
