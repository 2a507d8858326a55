package gateway

import (
	"context"

	"google.golang.org/grpc"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	ratelimitv1 "github.com/sluice-mesh/sluice/gen/sluice/ratelimit/v1"
	"github.com/sluice-mesh/sluice/services/internal/app"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/rpc"
)

// Build builds the gateway from the mesh's configuration and connections. It is called by package app.
func Build(ctx context.Context, mesh app.Mesh) (rpc.Service, error) {
	cfg, err := FromFile(mesh.File, mesh.Env)
	if err != nil {
		return nil, err
	}
	cfg.Version = mesh.Version
	for _, name := range mesh.Embedded {
		server := cfg.Servers[name]
		server.Embedded = name
		cfg.Servers[name] = server
	}
	conns := make(map[authv1.Role]grpc.ClientConnInterface)
	for _, role := range []authv1.Role{authv1.Role_ROLE_POLICY, authv1.Role_ROLE_RATELIMIT, authv1.Role_ROLE_APPROVAL, authv1.Role_ROLE_WASMAGENT, authv1.Role_ROLE_IDENTITY} {
		if conns[role], err = mesh.Conn(role); err != nil {
			return nil, err
		}
	}
	requestKeys(mesh, identityv1.NewIdentityServiceClient(conns[authv1.Role_ROLE_IDENTITY]))
	peers, err := healthClients(mesh)
	if err != nil {
		return nil, err
	}
	return New(ctx, cfg, Deps{
		Tokens:      mesh.Tokens,
		Policy:      policyv1.NewPolicyServiceClient(conns[authv1.Role_ROLE_POLICY]),
		Catalogue:   policyv1.NewCatalogServiceClient(conns[authv1.Role_ROLE_POLICY]),
		RateLimit:   ratelimitv1.NewRateLimitServiceClient(conns[authv1.Role_ROLE_RATELIMIT]),
		Approval:    approvalv1.NewApprovalServiceClient(conns[authv1.Role_ROLE_APPROVAL]),
		Connections: identityv1.NewConnectionServiceClient(conns[authv1.Role_ROLE_IDENTITY]),
		Agents:      conns[authv1.Role_ROLE_WASMAGENT],
		Peers:       peers,
		Meter:       mesh.Telemetry.Meters.Meter("github.com/sluice-mesh/sluice/services/gateway"),
		Tracer:      mesh.Telemetry.Provider.Tracer("github.com/sluice-mesh/sluice/services/gateway"),
		Propagator:  mesh.Telemetry.Propagator,
		Log:         mesh.Log,
		Env:         mesh.Env,
		Launcher:    mesh.Launcher,
		Wrap:        mesh.Wrap,
	})
}

// healthClients returns the health clients of the other services, by service name. The map contains no client for the
// policy service, because the policy lease shows whether that service is available.
func healthClients(mesh app.Mesh) (map[string]healthv1.HealthClient, error) {
	peers := make(map[string]healthv1.HealthClient)
	for _, role := range authn.Roles() {
		if role == authv1.Role_ROLE_GATEWAY || role == authv1.Role_ROLE_POLICY {
			continue
		}
		conn, err := mesh.Conn(role)
		if err != nil {
			return nil, err
		}
		peers[authn.RoleName(role)] = healthv1.NewHealthClient(conn)
	}
	return peers, nil
}

// requestKeys makes the gateway request the keys of an issuer from the identity service when a JWT names an unknown key.
func requestKeys(mesh app.Mesh, identity identityv1.IdentityServiceClient) {
	mesh.Tokens.AskForKeys(func(ctx context.Context, issuer string) ([]byte, error) {
		resp, err := identity.ReportUnknownKey(ctx, &identityv1.ReportUnknownKeyRequest{Issuer: issuer})
		if err != nil {
			mesh.Log.WarnContext(ctx, "the new keys of an issuer could not be requested", "issuer", issuer, "error", err)
		}
		return resp.GetKeysSha256(), err
	})
}
