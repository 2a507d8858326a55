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
		os.Exit(serveRecording())
	}
	if os.Getenv(slowServer) != "" {
		os.Exit(serveSlowly())
	}
	if os.Getenv(sessionlessServer) != "" {
		os.Exit(serveSessionless())
	}
	if os.Getenv(echoServer) != "" {
		os.Exit(serveEcho())
	}
	if os.Getenv(oddProgram) != "" {
		os.Exit(serveOdd())
	}
	if os.Getenv(clientsTest) != "" {
		os.Exit(serveSuite())
	}
	os.Exit(stack.Main(m))
}
