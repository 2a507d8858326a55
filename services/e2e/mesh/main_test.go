package mesh_test

import (
	"os"
	"testing"

	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

// TestMain runs the tests. If the environment variable slowServer is set, the process instead runs as a test's stdio
// server.
func TestMain(m *testing.M) {
	if os.Getenv(slowServer) != "" {
		os.Exit(runSlowServer())
	}
	os.Exit(stack.Main(m))
}
