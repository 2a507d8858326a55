//go:build !race

package sandbox_test

import "testing"

// runTests runs the tests.
func runTests(m *testing.M) int { return m.Run() }
