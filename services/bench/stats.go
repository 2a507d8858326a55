package bench

import (
	"math"
	"slices"
	"time"
)

// Spread summarizes the values of one quantity over the rounds. The zero value means that nothing was measured.
type Spread struct {
	// Median, Min and Max are the median, minimum and maximum over the rounds.
	Median, Min, Max float64
	// Rounds is the number of rounds. It is 0 if nothing was measured.
	Rounds int
}

// Summarize returns the spread of the given values.
func Summarize(values []float64) Spread {
	if len(values) == 0 {
		return Spread{}
	}
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	middle := sorted[n/2]
	if n%2 == 0 {
		middle = (sorted[n/2-1] + sorted[n/2]) / 2
	}
	return Spread{Median: middle, Min: sorted[0], Max: sorted[n-1], Rounds: n}
}

// Percentile returns the q-quantile of sorted values by the nearest-rank method. q is between 0 and 1. Percentile
// returns 0 if sorted is empty.
func Percentile(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	rank := int(math.Ceil(q * float64(len(sorted))))
	return sorted[min(max(rank, 1), len(sorted))-1]
}
