package servers_test

import (
	"os"
	"testing"

	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

// TestMain runs the tests. If one of the following variables is set, the process runs as a test's stdio server instead.
func TestMain(m *testing.M) {
	if os.Getenv(echoServer) != "" {
		os.Exit(runEchoServer())
	}
	if os.Getenv(oddProgram) != "" {
		os.Exit(runOddProgram())
	}
	os.Exit(stack.Main(m))
}
