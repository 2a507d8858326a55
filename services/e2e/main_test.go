package e2e_test

import (
	"os"
	"testing"

	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

// TestMain runs the tests. If one of the variables below is set, the process runs instead as a stdio server of a test
// or as the client of the conformance suite.
func TestMain(m *testing.M) {
	if os.Getenv(recordingServer) != "" {
		os.Exit(runRecordingServer())
	}
	if os.Getenv(slowServer) != "" {
		os.Exit(runSlowServer())
	}
	if os.Getenv(sessionlessServer) != "" {
		os.Exit(runSessionlessProxy())
	}
	if os.Getenv(echoServer) != "" {
		os.Exit(runEchoServer())
	}
	if os.Getenv(oddProgram) != "" {
		os.Exit(runOddProgram())
	}
	if os.Getenv(suiteTestVariable) != "" {
		os.Exit(runSuiteClient())
	}
	os.Exit(stack.Main(m))
}
