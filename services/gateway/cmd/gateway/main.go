// Command gateway serves the MCP edge and sluice.gateway.v1.
package main

import (
	"context"

	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	ratelimitv1 "github.com/sluice-mesh/sluice/gen/sluice/ratelimit/v1"
	"github.com/sluice-mesh/sluice/services/gateway"
	"github.com/sluice-mesh/sluice/services/internal/app"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/rpc"
	"github.com/sluice-mesh/sluice/services/internal/sandbox"
)

func main() {
	launcher := sandbox.RunLauncher()
	app.Role(authv1.Role_ROLE_GATEWAY, func(ctx context.Context, mesh app.Mesh) (rpc.Service, error) {
		return build(ctx, mesh, launcher)
	})
}

func build(ctx context.Context, mesh app.Mesh, launcher sandbox.Launcher) (rpc.Service, error) {
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
	approvals, err := mesh.Conn(authv1.Role_ROLE_APPROVAL)
	if err != nil {
		return nil, err
	}
	peers := make(map[string]healthv1.HealthClient)
	for _, role := range []authv1.Role{authv1.Role_ROLE_RATELIMIT, authv1.Role_ROLE_APPROVAL, authv1.Role_ROLE_WASMAGENT} {
		conn, err := mesh.Conn(role)
		if err != nil {
			return nil, err
		}
		peers[authn.RoleName(role)] = healthv1.NewHealthClient(conn)
	}
	return gateway.New(ctx, cfg, gateway.Deps{
		Tokens:     mesh.Tokens,
		Policy:     policyv1.NewPolicyServiceClient(policy),
		RateLimit:  ratelimitv1.NewRateLimitServiceClient(limiter),
		Approval:   approvalv1.NewApprovalServiceClient(approvals),
		Peers:      peers,
		Meter:      mesh.Telemetry.Meters.Meter("github.com/sluice-mesh/sluice/services/gateway"),
		Tracer:     mesh.Telemetry.Provider.Tracer("github.com/sluice-mesh/sluice/services/gateway"),
		Propagator: mesh.Telemetry.Propagator,
		Log:        mesh.Log,
		Env:        mesh.Env,
		Launcher:   launcher,
	})
}
