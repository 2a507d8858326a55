//go:build !race

package norace

import "testing"

// Some returns how many of the cases of a test must be checked. Without the race detector, these are all cases. With
// it, a tenth is enough to detect races. `make test` runs the test both ways if its name contains "Seeded",
// "EveryByte" or "Thousands", and the variable SEEDED in the Makefile contains its package. A test of internal/arch checks
// that.
func Some(all int) int { return all }

// Run runs the tests of a package and returns the exit code.
func Run(m *testing.M) int { return m.Run() }
