package bench_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-mesh/sluice/services/bench"
)

// smallConfig returns a configuration that does not need the mesh's programs.
func smallConfig(t *testing.T) bench.Config {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return bench.Config{Rounds: 2, Duration: 50 * time.Millisecond, Callers: []int{1, 3}, Cells: []string{"direct", "lean"}, Bin: t.TempDir(), Self: self}
}

func TestRun_MeasuresEveryCellInEveryRound(t *testing.T) {
	t.Parallel()
	var progress bytes.Buffer
	results, err := bench.Run(t.Context(), smallConfig(t), &progress)
	if err != nil {
		t.Fatal(err)
	}
	if len(results.Samples) != 2*2*3 || len(results.Failures) != 0 {
		t.Fatalf("there are %d samples and the failures %q, want 12 and none", len(results.Samples), results.Failures)
	}
	for _, s := range results.Samples {
		if s.Calls < s.Callers || s.Elapsed < 50*time.Millisecond || s.P50 <= 0 || s.P99 < s.P50 {
			t.Errorf("a sample is not complete: %+v", s)
		}
		want := map[string][]string{"direct": {"load", "echo"}, "lean": {"load", "lean", "echo"}, bench.Floor: {"load", "proxy", "echo"}}[s.Cell]
		if runtime.GOOS != "linux" {
			want = nil
		}
		var names []string
		for _, p := range s.CPU {
			names = append(names, p.Process)
		}
		if diff := cmp.Diff(want, names); diff != "" {
			t.Errorf("processes of %s (-want +got):\n%s", s.Cell, diff)
		}
	}
	for _, n := range []int{1, 3} {
		for _, cell := range []string{"direct", "lean"} {
			if got := results.Ratio(cell, n); got.Rounds != 2 || got.Min <= 0 {
				t.Errorf("with %d callers the ratio of %s to the floor is %+v, want one over 2 rounds", n, cell, got)
			}
		}
	}
	if got := strings.Count(progress.String(), "\n"); got != 12 {
		t.Errorf("progress has %d lines, want 12:\n%s", got, &progress)
	}
}

func TestRun_ReturnsItsResultsWhenInterrupted(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithCancel(t.Context())
	results, err := bench.Run(ctx, smallConfig(t), cancelOnWrite{stop})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("the run ended with %v, want that it was cancelled", err)
	}
	if len(results.Samples) != 1 || len(results.Failures) != 0 {
		t.Errorf("there are %d samples and the failures %q, want 1 and none", len(results.Samples), results.Failures)
	}
}

// cancelOnWrite is a writer that stops a run when the run reports its first sample.
type cancelOnWrite struct{ stop context.CancelFunc }

func (s cancelOnWrite) Write(p []byte) (int, error) {
	s.stop()
	return len(p), nil
}

func TestRun_RefusesInvalidConfigurations(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		edit func(*bench.Config)
		want string
	}{
		"without rounds":         {func(c *bench.Config) { c.Rounds = 0 }, "rounds must be at least 1"},
		"without a duration":     {func(c *bench.Config) { c.Duration = 0 }, "duration must be positive"},
		"without callers":        {func(c *bench.Config) { c.Callers = []int{1, 0} }, "callers must be at least 1"},
		"for an unknown cell":    {func(c *bench.Config) { c.Cells = []string{"dirct"} }, "no cell is named \"dirct\": the cells are direct, proxy, lean, up"},
		"without the programs":   {func(c *bench.Config) { c.Cells = []string{"apart"} }, "ratelimit is not built: run `make build`"},
		"without other gateways": {func(c *bench.Config) { c.Cells = []string{"thv"} }, "thv is not built: run `make peers`"},
		"with a program missing": {func(c *bench.Config) { c.Cells = nil }, "sluice is not built"},
		"with a wrong self":      {func(c *bench.Config) { c.Self = c.Bin + "/none" }, "the programs did not start"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := smallConfig(t)
			tc.edit(&cfg)
			_, err := bench.Run(t.Context(), cfg, io.Discard)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("the run ended with %v, want %q", err, tc.want)
			}
		})
	}
}
