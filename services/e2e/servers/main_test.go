package servers_test

import (
	"os"
	"testing"

	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

// TestMain runs the tests. If one of the variables below is set, the process runs instead as a stdio server of a test.
func TestMain(m *testing.M) {
	if os.Getenv(echoServer) != "" {
		os.Exit(runEchoServer())
	}
	if os.Getenv(oddProgram) != "" {
		os.Exit(runOddProgram())
	}
	os.Exit(stack.Main(m))
}
