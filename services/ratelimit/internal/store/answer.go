package store

import "github.com/sluice-mesh/sluice/services/ratelimit/internal/window"

// add adds what limit i says. The answer turns into a refusal by the limit to wait
// for longest, one that never fits before all others.
func (a *Answer) add(i int, v window.Verdict) {
	a.Remaining[i] = v.Remaining
	longer := v.Never || a.Granted || v.Wait > a.RetryAfter
	if v.Fits || a.Never || !longer {
		return
	}
	a.Granted, a.Never, a.RetryAfter, a.Limit = false, v.Never, v.Wait, i
}

// granted is the answer after the costs of limits are taken.
func (a Answer) granted(limits []Limit) Answer {
	for i := range limits {
		a.Remaining[i] -= limits[i].Cost
	}
	a.Limit = tightest(a.Remaining)
	return a
}

// repeat is the answer to a key that has a lease already. What it asks for does
// not have to fit once more.
func (a Answer) repeat(held Lease) Answer {
	return Answer{Granted: true, Lease: held, Remaining: a.Remaining, Limit: tightest(a.Remaining)}
}

// tightest is the index of the limit with the least left, the first of equals.
func tightest(remaining []int64) int {
	least := 0
	for i, left := range remaining {
		if left < remaining[least] {
			least = i
		}
	}
	return least
}
