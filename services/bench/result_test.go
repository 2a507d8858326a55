package bench_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sluice-mesh/sluice/services/bench"
)

// newSample returns a sample of a cell with a number of calls in one second.
func newSample(cell string, callers, round, calls int) bench.Sample {
	return bench.Sample{Cell: cell, Callers: callers, Round: round, Calls: calls, Elapsed: time.Second}
}

func TestRatio_ComparesWithinARound(t *testing.T) {
	t.Parallel()
	results := bench.Results{Samples: []bench.Sample{
		newSample(bench.Floor, 1, 0, 1000), newSample("up", 1, 0, 900),
		// In this round the machine was slower, and the rates of both cells are lower.
		newSample("up", 1, 1, 220), newSample(bench.Floor, 1, 1, 200),
		newSample(bench.Floor, 1, 2, 500), newSample("up", 1, 2, 500),
		// This round was interrupted before the floor was measured, so it does not count.
		newSample("up", 1, 3, 5000),
		// Samples with a different number of callers are compared separately.
		newSample(bench.Floor, 32, 0, 100), newSample("up", 32, 0, 300),
	}}
	for name, tc := range map[string]struct {
		cell    string
		callers int
		want    bench.Spread
	}{
		"a cell":                {"up", 1, bench.Spread{Median: 1, Min: 0.9, Max: 1.1, Rounds: 3}},
		"other callers":         {"up", 32, bench.Spread{Median: 3, Min: 3, Max: 3, Rounds: 1}},
		"the floor itself":      {bench.Floor, 1, bench.Spread{Median: 1, Min: 1, Max: 1, Rounds: 3}},
		"what was not measured": {"apart", 1, bench.Spread{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(tc.want, results.Ratio(tc.cell, tc.callers), cmpopts.EquateApprox(0, 1e-9)); diff != "" {
				t.Errorf("ratio (-want +got):\n%s", diff)
			}
		})
	}
}

func TestPerCall_IsTheMedianOfEachProcess(t *testing.T) {
	t.Parallel()
	var results bench.Results
	for round, used := range []time.Duration{10, 30, 20} {
		s := newSample("up", 1, round, 100)
		s.CPU = []bench.ProcessCPU{{Process: "load", Used: 100 * time.Microsecond}, {Process: "sluice", Used: used * time.Millisecond}}
		results.Samples = append(results.Samples, s)
	}
	want := []bench.ProcessCPU{{Process: "load", Used: time.Microsecond}, {Process: "sluice", Used: 200 * time.Microsecond}}
	if diff := cmp.Diff(want, results.PerCall("up", 1)); diff != "" {
		t.Errorf("CPU time per call (-want +got):\n%s", diff)
	}
}

func TestDisturbed_CountsSamplesWithForeignLoad(t *testing.T) {
	t.Parallel()
	quiet, loud := newSample("up", 1, 0, 1), newSample("up", 1, 1, 1)
	quiet.Foreign, loud.Foreign = bench.MaxForeign, bench.MaxForeign+0.01
	results := bench.Results{Samples: []bench.Sample{quiet, loud, quiet}}
	if disturbed, all := results.Disturbed(); disturbed != 1 || all != 3 {
		t.Errorf("%d of %d were disturbed, want 1 of 3", disturbed, all)
	}
}
