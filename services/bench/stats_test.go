package bench_test

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/sluice-mesh/sluice/services/bench"
)

func TestSummarize_ReturnsMedianAndRange(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		values []float64
		want   bench.Spread
	}{
		"nothing":                           {nil, bench.Spread{}},
		"one value is all of it":            {[]float64{3}, bench.Spread{Median: 3, Min: 3, Max: 3, Rounds: 1}},
		"of an odd number the middle one":   {[]float64{9, 1, 2}, bench.Spread{Median: 2, Min: 1, Max: 9, Rounds: 3}},
		"of an even number between the two": {[]float64{4, 1, 9, 2}, bench.Spread{Median: 3, Min: 1, Max: 9, Rounds: 4}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(tc.want, bench.Summarize(tc.values)); diff != "" {
				t.Errorf("spread (-want +got):\n%s", diff)
			}
		})
	}
}

func TestSummarize_DoesNotChangeItsArgument(t *testing.T) {
	t.Parallel()
	values := []float64{3, 1, 2}
	bench.Summarize(values)
	if diff := cmp.Diff([]float64{3, 1, 2}, values); diff != "" {
		t.Errorf("values (-want +got):\n%s", diff)
	}
}

func TestPercentile_ReturnsTheNearestRank(t *testing.T) {
	t.Parallel()
	hundred := make([]time.Duration, 100)
	for i := range hundred {
		hundred[i] = time.Duration(i + 1)
	}
	for name, tc := range map[string]struct {
		sorted []time.Duration
		q      float64
		want   time.Duration
	}{
		"of nothing":                    {nil, 0.5, 0},
		"of one value any":              {[]time.Duration{7}, 0.99, 7},
		"the middle of a hundred":       {hundred, 0.50, 50},
		"the 99th of a hundred":         {hundred, 0.99, 99},
		"the least":                     {hundred, 0, 1},
		"the most":                      {hundred, 1, 100},
		"of three the 99th is the last": {[]time.Duration{1, 2, 3}, 0.99, 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := bench.Percentile(tc.sorted, tc.q); got != tc.want {
				t.Errorf("percentile %v is %d, want %d", tc.q, got, tc.want)
			}
		})
	}
}

func TestPercentile_HasItsFractionBelow(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		values := rapid.SliceOfN(rapid.Int64Range(0, 50), 1, 60).Draw(t, "values")
		q := rapid.Float64Range(0.01, 1).Draw(t, "q")
		sorted := make([]time.Duration, len(values))
		for i, v := range values {
			sorted[i] = time.Duration(v)
		}
		slices.Sort(sorted)
		got := bench.Percentile(sorted, q)
		upTo, below := 0, 0
		for _, v := range sorted {
			if v <= got {
				upTo++
			}
			if v < got {
				below++
			}
		}
		if n := float64(len(sorted)); float64(upTo) < q*n || float64(below) >= q*n {
			t.Fatalf("percentile %v of %v is %v: %d values are not larger, and %d are smaller", q, sorted, got, upTo, below)
		}
	})
}
