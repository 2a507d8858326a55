package engine

// maxTried is the maximum number of combinations that [evaluations.combine] tries if there are too many conditions to
// try all combinations.
const maxTried = 400

// combine assumes results for the conditions whose results are unknown. Each such result can be true, false or failed.
// For each combination of results, combine calls try, which makes decisions and may evaluate further conditions. If at
// most limit conditions have unknown results, combine tries all combinations and returns true.
//
// Otherwise combine returns false and tries at most [maxTried] combinations: all conditions are false, all conditions
// are true, and the combinations that differ from these in one or two conditions. Therefore a rule that depends on
// three conditions may not apply in any of these combinations.
func (e *evaluations) combine(limit uint, try func()) (complete bool) {
	for n := uint(0); n < powerOf3(e.open, limit); n++ {
		e.assume(n)
		try()
		if e.open > limit {
			e.combineSome(try)
			return false
		}
	}
	return true
}

// combineSome tries the combinations in which all conditions are false except for at most two, and those in which all
// are true except for at most two.
func (e *evaluations) combineSome(try func()) {
	left := maxTried
	with := func(assumed, failing uint) {
		if left > 0 {
			left--
			e.assumed, e.failing = assumed, failing
			try()
		}
	}
	for _, all := range []uint{0, ^uint(0)} {
		with(all, 0)
		for bit := uint(0); bit < e.open; bit++ {
			with(all^1<<bit, 0)
			with(all, 1<<bit)
		}
	}
	for first := uint(0); first < e.open; first++ {
		for second := first + 1; second < e.open; second++ {
			with(1<<first|1<<second, 0)
			with(^(1<<first | 1<<second), 0)
		}
	}
}

// assume sets the unknown results to the base-3 digits of n. The digit 0 means false, 1 means true, and 2 means failed.
func (e *evaluations) assume(n uint) {
	e.assumed, e.failing = 0, 0
	for bit := uint(0); n > 0; bit, n = bit+1, n/3 {
		switch n % 3 {
		case 1:
			e.assumed |= 1 << bit
		case 2:
			e.failing |= 1 << bit
		}
	}
}

// powerOf3 returns 3 to the power of n. If n is greater than limit+1, it returns 3 to the power of limit+1.
func powerOf3(n, limit uint) uint {
	out := uint(1)
	for range min(n, limit+1) {
		out *= 3
	}
	return out
}
