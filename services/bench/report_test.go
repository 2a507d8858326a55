package bench_test

import (
	"flag"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-mesh/sluice/services/bench"
)

var update = flag.Bool("update", false, "write the golden files")

func aboutMachine() bench.About {
	return bench.About{
		CPU: "Example 9000", Cores: 2, Platform: "linux/amd64", Go: "go1.26.0", Commit: "0123456789ab",
		Date: time.Date(2026, 5, 6, 7, 8, 9, 0, time.UTC), Command: `make bench ARGS="-rounds 2"`, Rounds: 2, Duration: 3 * time.Second,
	}
}

// measuredResults returns the results of two rounds of three cells. The last cell meets its target only with one
// caller.
func measuredResults() *bench.Results {
	var r bench.Results
	for round := range 2 {
		for _, n := range []int{1, 32} {
			for i, cell := range []string{bench.Floor, "up", "apart"} {
				s := newSample(cell, n, round, 5000*n-(1000+500*round)*i*n)
				s.P50, s.P99 = 200*time.Microsecond, time.Duration(n)*time.Millisecond
				s.CPU = []bench.ProcessCPU{{Process: "load", Used: 50 * time.Millisecond}, {Process: cell, Used: time.Duration(i+1) * 100 * time.Millisecond}}
				r.Samples = append(r.Samples, s)
			}
		}
	}
	return &r
}

func TestReport_MatchesTheGoldenFile(t *testing.T) {
	t.Parallel()
	const file = "testdata/report.md"
	got := string(bench.Report(measuredResults(), aboutMachine()))
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("report (-want +got):\n%s", diff)
	}
}

func TestReport_ComparesConditionsWithTheSameCallWithout(t *testing.T) {
	t.Parallel()
	r := &bench.Results{}
	for round := range 2 {
		for i, cell := range []string{bench.Floor, "up", "up-condition", "apart", "apart-condition"} {
			r.Samples = append(r.Samples, newSample(cell, 1, round, []int{2000, 1000, 950, 800, 400}[i]))
		}
	}
	got := string(bench.Report(r, aboutMachine()))
	for _, want := range []string{
		"| `sluice up`, allowed by a rule with three conditions on arguments | **0.95** (0.95–0.95)<br>≥ 0.90 met |",
		"| separate processes, allowed by a rule with three conditions on arguments | **0.50** (0.50–0.50)<br>≥ 0.60 missed |",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("the report lacks %q:\n%s", want, got)
		}
	}
}

func TestReport_ComparesWithAnotherCommit(t *testing.T) {
	t.Parallel()
	r := &bench.Results{}
	for round := range 2 {
		for i, cell := range []string{bench.Floor, "up", "up-base"} {
			s := newSample(cell, 1, round, 1000-100*i)
			s.CPU = []bench.ProcessCPU{{Process: "load", Used: time.Second}, {Process: "sluice", Used: time.Duration(1000-100*i) * time.Millisecond}, {Process: "echo", Used: time.Second}}
			r.Samples = append(r.Samples, s)
		}
	}
	in := aboutMachine()
	in.Base = "ba9876543210"
	got := string(bench.Report(r, in))
	for _, want := range []string{
		"| compared with | ba9876543210 |",
		"| `sluice up`, allowed, no limits, before | **0.80** (0.80–0.80) |",
		"| `sluice up`, allowed, no limits | 1 | **1.12** (1.12–1.12) | **1.00** (1.00–1.00) |",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("the report lacks %q:\n%s", want, got)
		}
	}
}

func TestReport_NamesUnreliableResults(t *testing.T) {
	t.Parallel()
	r := measuredResults()
	r.Samples[3].Foreign = 0.4
	r.Samples = r.Samples[:7] // the run was interrupted in the second round
	r.Failures = []string{"apart with 256 callers in round 1: refused:\nthe rest of it"}
	got := string(bench.Report(r, aboutMachine()))
	for _, want := range []string{
		"had more than 10 % of the CPUs in 1 of 7 measurements, even when repeated",
		"\n## Not measured\n\n* apart with 256 callers in round 1: refused: the rest of it\n",
		"| `sluice up`, allowed, no limits | **0.80** (0.80–0.80)",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("the report lacks %q:\n%s", want, got)
		}
	}
}
