package oauthtest

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/principal"
)

// redirect is the redirect URI of sign-ins.
const redirect = "http://127.0.0.1:4711/callback"

// Connections calls the connection service of an identity service in the same process, without gRPC. It implements
// [identityv1.ConnectionServiceClient] for gateways. It is safe for concurrent use.
type Connections struct {
	identityv1.ConnectionServiceClient // nil, because gateways call only GetAccessToken
	server                             identityv1.ConnectionServiceServer
}

// NewConnections returns the connection service that a service of the mesh registers.
func NewConnections(of interface{ Register(r grpc.ServiceRegistrar) }) (*Connections, error) {
	found := new(registrar)
	of.Register(found)
	if found.server == nil {
		return nil, errors.New("the service registers no connection service")
	}
	return &Connections{server: found.server}, nil
}

// registrar remembers the connection service of the services that are registered.
type registrar struct {
	server identityv1.ConnectionServiceServer
}

// RegisterService implements [grpc.ServiceRegistrar].
func (r *registrar) RegisterService(desc *grpc.ServiceDesc, impl any) {
	if desc.ServiceName == identityv1.ConnectionService_ServiceDesc.ServiceName {
		r.server, _ = impl.(identityv1.ConnectionServiceServer)
	}
}

// GetAccessToken implements [identityv1.ConnectionServiceClient].
func (c *Connections) GetAccessToken(ctx context.Context, req *identityv1.GetAccessTokenRequest, _ ...grpc.CallOption) (*identityv1.GetAccessTokenResponse, error) {
	return c.server.GetAccessToken(authn.WithCaller(ctx, &authn.Caller{Role: authv1.Role_ROLE_GATEWAY}), req)
}

// SignIn signs a person in at a server of the mesh.
func (c *Connections) SignIn(ctx context.Context, at *Server, name string, person principal.Key) error {
	ctx = authn.WithCaller(ctx, &authn.Caller{Person: &identityv1.Principal{Tenant: person.Tenant, Subject: person.Subject, Role: authv1.TokenRole_TOKEN_ROLE_OPERATOR}})
	begun, err := c.server.StartConnection(ctx, &identityv1.StartConnectionRequest{Server: name, RedirectUri: redirect})
	if err != nil {
		return fmt.Errorf("start the sign-in: %w", err)
	}
	code, err := at.Authorize(begun.GetAuthorizationUrl())
	if err != nil {
		return err
	}
	if _, err := c.server.FinishConnection(ctx, &identityv1.FinishConnectionRequest{Attempt: begun.GetAttempt(), Code: code}); err != nil {
		return fmt.Errorf("finish the sign-in: %w", err)
	}
	return nil
}
