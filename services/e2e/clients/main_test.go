package clients_test

import (
	"os"
	"testing"

	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

// TestMain runs the tests, unless an environment variable makes the process run as a stdio server of a test or as the
// client of the conformance suite.
func TestMain(m *testing.M) {
	if os.Getenv(sessionlessServer) != "" {
		os.Exit(runSessionlessProxy())
	}
	if os.Getenv(suiteTestVariable) != "" {
		os.Exit(runSuiteClient())
	}
	os.Exit(stack.Main(m))
}
