//go:build !race

package unraced

import "testing"

// Run runs the package's tests, and returns the code to exit with.
func Run(m *testing.M) int { return m.Run() }
