// Command sluice runs the whole mesh in one process. It is also the command-line client for people.
package main

import (
	"os"

	"github.com/sluice-mesh/sluice/services/internal/sandbox"
	"github.com/sluice-mesh/sluice/services/sluice/internal/cli"
	"github.com/sluice-mesh/sluice/services/wasmagent"
)

func main() {
	launcher := sandbox.RunLauncher()
	wasmagent.WorkerMain()
	os.Exit(cli.Main(os.Args[0], os.Args[1:], launcher))
}
