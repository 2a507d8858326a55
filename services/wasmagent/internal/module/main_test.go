package module_test

import (
	"os"
	"testing"

	"github.com/sluice-mesh/sluice/services/internal/unraced"
)

// TestMain runs the tests without the race detector: what takes their time is compiling,
// which is the library's.
func TestMain(m *testing.M) { os.Exit(unraced.Run(m)) }
