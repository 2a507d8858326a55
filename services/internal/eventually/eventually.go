// Package eventually waits in tests for what has to happen.
package eventually

import (
	"testing"
	"time"
)

const (
	// patience is how long what should take no time may take on a busy machine.
	patience = 30 * time.Second
	// pause is how long it waits between two looks, and slowPause where a look costs much.
	pause, slowPause = 5 * time.Millisecond, 200 * time.Millisecond
)

// Holds waits until something holds, and ends the test where that takes too long.
func Holds(t testing.TB, what string, ok func() bool) {
	t.Helper()
	wait(t, patience, pause, what, ok)
}

// Within is [Holds] for what takes its time, up to a limit, and is not looked at often.
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
