// Command wasmagent serves sluice.wasmagent.v1 over gRPC.
package main

import (
	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	"github.com/sluice-mesh/sluice/services/internal/app"
	"github.com/sluice-mesh/sluice/services/wasmagent"
)

func main() {
	wasmagent.WorkerMain()
	app.Role(authv1.Role_ROLE_WASMAGENT, wasmagent.Build)
}
