// Package signin_test lets MCP clients sign in at OpenID providers, as people do with a browser, and call tools through
// the mesh with the access tokens that they receive.
package signin_test

import (
	"os"
	"testing"

	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

func TestMain(m *testing.M) { os.Exit(stack.Main(m)) }
