package personal_test

import (
	"os"
	"testing"

	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

func TestMain(m *testing.M) {
	if kind, ok := os.LookupEnv(hostileServer); ok {
		os.Exit(serveHostile(kind))
	}
	os.Exit(stack.Main(m))
}
