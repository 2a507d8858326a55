// Command gateway serves the MCP edge and sluice.gateway.v1.
package main

import (
	"context"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	ratelimitv1 "github.com/sluice-mesh/sluice/gen/sluice/ratelimit/v1"
	"github.com/sluice-mesh/sluice/services/gateway"
	"github.com/sluice-mesh/sluice/services/internal/app"
	"github.com/sluice-mesh/sluice/services/internal/rpc"
)

func main() { app.Role(authv1.Role_ROLE_GATEWAY, build) }

func build(ctx context.Context, mesh app.Mesh) (rpc.Service, error) {
	cfg, err := gateway.FromFile(mesh.File, mesh.Env)
	if err != nil {
		return nil, err
	}
	cfg.Version = app.Version()
	policy, err := mesh.Conn(authv1.Role_ROLE_POLICY)
	if err != nil {
		return nil, err
	}
	limiter, err := mesh.Conn(authv1.Role_ROLE_RATELIMIT)
	if err != nil {
		return nil, err
	}
	return gateway.New(ctx, cfg, gateway.Deps{
		Tokens:     mesh.Tokens,
		Policy:     policyv1.NewPolicyServiceClient(policy),
		RateLimit:  ratelimitv1.NewRateLimitServiceClient(limiter),
		Tracer:     mesh.Telemetry.Provider.Tracer("github.com/sluice-mesh/sluice/services/gateway"),
		Propagator: mesh.Telemetry.Propagator,
		Log:        mesh.Log,
		Env:        mesh.Env,
	})
}
