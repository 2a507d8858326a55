package policy_test

import (
	"os"
	"testing"

	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

// TestMain runs the tests. If the environment variable recordingServer or secretServer is set, the process instead runs
// as a test's stdio server.
func TestMain(m *testing.M) {
	if os.Getenv(recordingServer) != "" {
		os.Exit(runRecordingServer())
	}
	if os.Getenv(secretServer) != "" {
		os.Exit(runSecretServer())
	}
	os.Exit(stack.Main(m))
}
