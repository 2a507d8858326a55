package store

import "github.com/sluice-mesh/sluice/services/ratelimit/internal/window"

// add adds the verdict of limit i. The answer becomes a refusal by the limit with the longest wait, where a limit that
// never fits comes first.
func (a *Answer) add(i int, v window.Verdict) {
	a.Remaining[i] = v.Remaining
	longer := v.Never || a.Granted || v.Wait > a.RetryAfter
	if v.Fits || a.Never || !longer {
		return
	}
	a.Granted, a.Never, a.RetryAfter, a.Limit = false, v.Never, v.Wait, i
}

// granted returns the answer after the costs were taken.
func (a Answer) granted(limits []Limit) Answer {
	for i := range limits {
		a.Remaining[i] -= limits[i].Cost
	}
	a.Limit = tightest(a.Remaining)
	return a
}

// repeat returns the answer to a key that has a lease already. The costs need not fit again.
func (a Answer) repeat(held Lease) Answer {
	return Answer{Granted: true, Lease: held, Remaining: a.Remaining, Limit: tightest(a.Remaining)}
}

// tightest returns the index of the limit with the least left, the first of equal ones.
func tightest(remaining []int64) int {
	least := 0
	for i, left := range remaining {
		if left < remaining[least] {
			least = i
		}
	}
	return least
}
