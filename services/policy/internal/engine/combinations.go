package engine

// maxTried limits how many combinations [evaluations.combine] tries if there are too many conditions to try all of
// them.
const maxTried = 400

// combine assumes results for the conditions whose results are unknown. Each such result can be true, false or failed.
// For each combination of results that combine considers, it calls the function try, which makes decisions and may
// evaluate further conditions. The parameter most is a number of conditions. If no more conditions than this have
// unknown results, combine considers all combinations and returns true.
//
// Otherwise combine returns false and considers at most [maxTried] combinations. These are the combinations in which
// all conditions are false, in which all are true, and those that differ from them in one or two conditions. As a
// result, a rule that applies only for certain results of three conditions may apply in none of these combinations.
func (e *evaluations) combine(most uint, try func()) (complete bool) {
	for n := uint(0); n < powerOf3(e.open, most); n++ {
		e.assume(n)
		try()
		if e.open > most {
			e.combineSome(try)
			return false
		}
	}
	return true
}

// combineSome tries the combinations in which all conditions except at most two are false, and those in which all
// except at most two are true.
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

// assume sets the unknown results to the digits of n in base 3. The digit 0 means false, 1 means true, and 2 means
// failed.
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

// powerOf3 returns 3 to the power of n. If n is greater than most+1, it returns 3 to the power of most+1.
func powerOf3(n, most uint) uint {
	out := uint(1)
	for range min(n, most+1) {
		out *= 3
	}
	return out
}
