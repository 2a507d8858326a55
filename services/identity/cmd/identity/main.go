// Command identity serves sluice.identity.v1 over gRPC.
package main

import (
	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	"github.com/sluice-mesh/sluice/services/identity"
	"github.com/sluice-mesh/sluice/services/internal/app"
)

func main() { app.Role(authv1.Role_ROLE_IDENTITY, identity.Build) }
