// Package eventually waits in tests for conditions.
package eventually

import (
	"testing"
	"time"
)

const (
	// patience is how long a quick operation may take on a busy machine.
	patience = 30 * time.Second
	// pause is the time between two checks, and slowPause that between expensive ones.
	pause, slowPause = 5 * time.Millisecond, 200 * time.Millisecond
)

// Holds waits until a condition holds, and ends the test if that takes too long.
func Holds(t testing.TB, what string, ok func() bool) {
	t.Helper()
	wait(t, patience, pause, what, ok)
}

// Within is [Holds] for slow conditions, with a limit and expensive checks.
func Within(t testing.TB, limit time.Duration, what string, ok func() bool) {
	t.Helper()
	wait(t, limit, slowPause, what, ok)
}

func wait(t testing.TB, limit, between time.Duration, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(limit); !ok(); <-time.After(between) {
		if time.Now().After(end) {
			t.Fatalf("not within %s: %s", limit, what)
		}
	}
}
