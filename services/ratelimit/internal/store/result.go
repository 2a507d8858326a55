package store

import "github.com/sluice-mesh/sluice/services/ratelimit/internal/window"

// add adds the verdict for limit i to the result. If any limit does not fit, the result is a refusal. The refusal
// contains the index of the first limit that never fits. If there is no such limit, it contains the index of the limit
// with the longest wait.
func (a *Result) add(i int, v window.Verdict) {
	a.Remaining[i] = v.Remaining
	longer := v.Never || a.Granted || v.Wait > a.RetryAfter
	if v.Fits || a.Never || !longer {
		return
	}
	a.Granted, a.Never, a.RetryAfter, a.Limit = false, v.Never, v.Wait, i
}

// granted returns the result after the units were taken.
func (a Result) granted(limits []Limit) Result {
	for i := range limits {
		a.Remaining[i] -= limits[i].Cost
	}
	a.Limit = tightest(a.Remaining)
	return a
}

// repeat returns the result for a key that already has a reservation. Unlike a new reservation, a repeat can be granted
// when the costs no longer fit.
func (a Result) repeat(existing Reservation) Result {
	return Result{Granted: true, Reservation: existing, Remaining: a.Remaining, Limit: tightest(a.Remaining)}
}

// tightest returns the index of the limit with the fewest remaining units. If several limits have equally few, it
// returns the first of them.
func tightest(remaining []int64) int {
	least := 0
	for i, left := range remaining {
		if left < remaining[least] {
			least = i
		}
	}
	return least
}
