package wasmagent

import (
	"context"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
	"github.com/sluice-mesh/sluice/services/internal/app"
	"github.com/sluice-mesh/sluice/services/internal/rpc"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/guests"
)

// Build is the role's [app.Build].
func Build(_ context.Context, mesh app.Mesh) (rpc.Service, error) {
	gateway, err := mesh.Conn(authv1.Role_ROLE_GATEWAY)
	if err != nil {
		return nil, err
	}
	listed := make(map[string]guests.Listed)
	for name, g := range mesh.File.Agents.Guests {
		listed[name] = guests.Listed{Path: mesh.File.Path(g.Module), SHA256: g.SHA256}
	}
	return New(
		Config{Data: mesh.File.Path(mesh.File.Data), Hold: mesh.File.Approvals.Hold, Guests: listed},
		Deps{Gateway: gatewayv1.NewGatewayServiceClient(gateway), Log: mesh.Log},
	)
}
