// Command wasmagent serves sluice.wasmagent.v1 over gRPC.
package main

import (
	"context"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	"github.com/sluice-mesh/sluice/services/internal/app"
	"github.com/sluice-mesh/sluice/services/internal/rpc"
	"github.com/sluice-mesh/sluice/services/wasmagent"
)

func main() { app.Role(authv1.Role_ROLE_WASMAGENT, build) }

func build(context.Context, app.Mesh) (rpc.Service, error) { return wasmagent.New(), nil }
