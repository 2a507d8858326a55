//go:build !race

package norace

import "testing"

// Run runs the tests of a package and returns the exit code.
func Run(m *testing.M) int { return m.Run() }
