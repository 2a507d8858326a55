package servers_test

import (
	"os"
	"testing"

	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

// TestMain runs the tests. If the environment variable echoServer or oddProgram is set, the process instead runs as a
// test's stdio server.
func TestMain(m *testing.M) {
	if os.Getenv(echoServer) != "" {
		os.Exit(runEchoServer())
	}
	if os.Getenv(oddProgram) != "" {
		os.Exit(runOddProgram())
	}
	os.Exit(stack.Main(m))
}
