//go:build !race

package unraced

import "testing"

// Run runs the tests of a package and returns the exit code.
func Run(m *testing.M) int { return m.Run() }
