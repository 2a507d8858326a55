// Command policy serves sluice.policy.v1 over gRPC.
package main

import (
	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	"github.com/sluice-mesh/sluice/services/internal/app"
	"github.com/sluice-mesh/sluice/services/policy"
)

func main() { app.Role(authv1.Role_ROLE_POLICY, policy.Build) }
