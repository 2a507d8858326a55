// Package eventually lets tests wait for conditions.
package eventually

import (
	"testing"
	"time"
)

const (
	// timeout is how long an operation that is normally quick may take on a busy machine.
	timeout = 2 * time.Minute
	// interval is the time between two checks. slowInterval is the time between two expensive checks.
	interval, slowInterval = 5 * time.Millisecond, 200 * time.Millisecond
)

// Holds waits until ok returns true. If that takes more than two minutes, Holds fails the test with a message that
// contains the given description of the condition.
func Holds(t testing.TB, what string, ok func() bool) {
	t.Helper()
	wait(t, timeout, interval, what, ok)
}

// Within is like [Holds], but for slow conditions. It waits at most for the given limit and calls ok less often.
func Within(t testing.TB, limit time.Duration, what string, ok func() bool) {
	t.Helper()
	wait(t, limit, slowInterval, what, ok)
}

func wait(t testing.TB, limit, between time.Duration, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(limit); !ok(); <-time.After(between) {
		if time.Now().After(end) {
			t.Fatalf("not within %s: %s", limit, what)
		}
	}
}
