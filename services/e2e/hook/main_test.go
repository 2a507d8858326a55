package hook_test

import (
	"os"
	"testing"

	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

func TestMain(m *testing.M) { os.Exit(stack.Main(m)) }
