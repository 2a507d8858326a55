package e2e_test

import (
	"os"
	"testing"

	"github.com/sluice-mesh/sluice/services/internal/e2e/stack"
)

// TestMain runs the tests, or is the server over stdio that some of them start.
func TestMain(m *testing.M) {
	if os.Getenv(slowServer) != "" {
		os.Exit(serveSlowly())
	}
	os.Exit(stack.Main(m))
}
