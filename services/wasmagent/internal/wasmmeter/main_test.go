package wasmmeter_test

import (
	"os"
	"testing"

	"github.com/sluice-mesh/sluice/services/internal/norace"
)

// TestMain runs the tests without the race detector, because they spend most of their time in the compiler of the
// WebAssembly library.
func TestMain(m *testing.M) { os.Exit(norace.Run(m)) }
