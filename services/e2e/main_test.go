package e2e_test

import (
	"os"
	"testing"

	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

// TestMain runs the tests, or one of the stdio servers that some tests start, or the client that the suite for
// clients starts.
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
