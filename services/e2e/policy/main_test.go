package policy_test

import (
	"os"
	"testing"

	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

// TestMain runs the tests. If recordingServer or secretServer is set, the process runs as a test's stdio server
// instead.
func TestMain(m *testing.M) {
	if os.Getenv(recordingServer) != "" {
		os.Exit(runRecordingServer())
	}
	if os.Getenv(secretServer) != "" {
		os.Exit(runSecretServer())
	}
	os.Exit(stack.Main(m))
}
