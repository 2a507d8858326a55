package worker_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sluice-mesh/sluice/services/wasmagent/internal/engine"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/guesttest"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/worker"
)

const (
	// wellBehavedGuests is the number of well-behaved guests. Each of them pauses after each turn. hostileGuests is the
	// number of hostile guests. It equals the maximum number of guests that one caller can run at the same time.
	wellBehavedGuests = 4
	hostileGuests     = 6
	pause             = 5 * time.Millisecond
	// maxRatio limits how much hostile guests may slow down turns. Each round divides the 99th percentile of the turn
	// durations next to hostile guests by the 99th percentile next to guests that only compute. The median of these
	// ratios over all rounds must not exceed maxRatio.
	maxRatio = 1.5
	// memoryMargin is the memory that a worker may use in addition to its limit, in bytes.
	memoryMargin = 64 * mib
	// workerMemory is the memory limit of the worker, in bytes.
	workerMemory    = 512 * mib
	hostileDeadline = 200 * time.Millisecond
)

func hostileModules() map[string]guesttest.HandMade {
	loop := func(body ...guesttest.Code) guesttest.Code {
		return guesttest.Concat(guesttest.Code{0x03, 0x40}, guesttest.Concat(body...), guesttest.Code{0x0c, 0, 0x0b, 0x00})
	}
	return map[string]guesttest.HandMade{
		"W1 an endless loop":          {Step: guesttest.Endless},
		"W2 a stack without end":      {Step: guesttest.Concat(guesttest.I32(1), guesttest.Code{0x10, 3, 0x1a}, guesttest.Answer(0, 0)), More: []guesttest.Code{{0x20, 0, 0x10, 3, 0x10, 3}}},
		"W3 a storm of memory.fill":   {Memory: []byte{1, 0, 0x80, 1}, Step: loop(guesttest.I32(0), guesttest.I32(1), guesttest.I32(8<<20), guesttest.Code{0xfc, 11, 0})},
		"W4 memory without end":       {Step: loop(guesttest.I32(16), guesttest.Code{0x40, 0, 0x1a})},
		"W7 a flood of calls":         {Imports: guesttest.Import("sched_yield", 0), Step: loop(guesttest.Code{0x10, 0, 0x1a})},
		"W8 an answer behind the end": {Step: guesttest.Answer(1<<16-1, 2)},
		"W9 a flood of output":        {Memory: []byte{1, 0, 17}, Step: guesttest.Answer(0, 1<<20)},
		"W11 a trap":                  {Step: guesttest.Code{0x00}},
	}
}

// computingGuest is a guest that computes for some milliseconds in each step, in a loop that counts down from 4
// million.
var computingGuest = guesttest.HandMade{
	Step: guesttest.Concat(guesttest.I32(4_000_000), guesttest.Code{0x10, 3, 0x1a}, guesttest.Answer(1024, 2)),
	More: []guesttest.Code{guesttest.Concat(
		guesttest.Code{0x03, 0x40, 0x20, 0}, guesttest.I32(1), guesttest.Code{0x6b, 0x22, 0, 0x0d, 0, 0x0b}, guesttest.I32(0),
	)},
}

// TestStep_IsFastNextToHostileGuests runs well-behaved guests next to hostile guests and, in alternation, next to
// guests that only compute. It checks that no turn of a well-behaved guest fails, and that the worker stays within its
// memory limit.
//
// The environment variable SLUICE_NEIGHBOURS sets the duration of one run. If the variable is set, the test also fails
// if turns are too slow next to hostile guests. Otherwise, the test only logs slow turns.
func TestStep_IsFastNextToHostileGuests(t *testing.T) {
	stretch, rounds, judged := 300*time.Millisecond, 1, false
	if text, ok := os.LookupEnv("SLUICE_NEIGHBOURS"); ok {
		var err error
		if stretch, err = time.ParseDuration(text); err != nil {
			t.Fatalf("SLUICE_NEIGHBOURS: %v", err)
		}
		rounds, judged = 9, true
	}
	s := supervisor(t, func(c *worker.Config) { c.Memory = workerMemory })
	digest := compileScript(t, s)
	works, err := s.Compile(t.Context(), computingGuest.Module())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range slices.Sorted(maps.Keys(hostileModules())) {
		bad, err := s.Compile(t.Context(), hostileModules()[name].Module())
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		var ratios []float64
		var beside, alone []time.Duration
		most, failed := 0, int64(0)
		for i := 0; i < rounds || failed == 0 && i < 10; i++ { // on a busy machine, a short run may end before any step ends
			calm, _ := turnsNextTo(t, s, digest, works, stretch)
			bad, ends := turnsNextTo(t, s, digest, bad, stretch)
			alone, beside, failed = append(alone, calm...), append(beside, bad...), failed+ends
			ratios = append(ratios, float64(percentile99(bad))/float64(percentile99(calm)))
			most = max(most, maxResident(t, s))
		}
		slices.Sort(ratios)
		ratio := ratios[len(ratios)/2]
		t.Logf("%s: the 99th of 100 turns took %v with busy guests and %v with bad ones, %.2f times in the median round; %d bad steps ended; the worker has %d MiB",
			name, percentile99(alone), percentile99(beside), ratio, failed, most>>20)
		if failed == 0 {
			t.Errorf("%s: no step of a hostile guest ended", name)
		}
		if judged && ratio > maxRatio {
			t.Errorf("%s: turns took %.2f times as long, want at most %v", name, ratio, maxRatio)
		}
		if most > workerMemory+memoryMargin {
			t.Errorf("%s: the worker has %d MiB, want at most %d", name, most>>20, (workerMemory+memoryMargin)>>20)
		}
	}
}

// turnsNextTo runs turns of well-behaved guests next to other guests. The parameter others is the digest of the other
// guests' module, and lasts is the duration of the run. turnsNextTo returns the duration of each turn, and the number
// of steps of the other guests.
func turnsNextTo(t *testing.T, s *worker.Supervisor, digest, others string, lasts time.Duration) (took []time.Duration, ended int64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), lasts)
	defer cancel()
	var working sync.WaitGroup
	var count atomic.Int64
	for range hostileGuests {
		working.Go(func() {
			for ctx.Err() == nil {
				if err := runOtherGuest(ctx, s, others, &count); err != nil && ctx.Err() == nil && status.Code(err) != codes.DeadlineExceeded {
					t.Errorf("a hostile guest: %v", err)
					return
				}
			}
		})
	}
	var mu sync.Mutex
	for range wellBehavedGuests {
		in := startInstance(t, s, digest)
		step(t, in, startEnvelope)
		working.Go(func() {
			defer func() { _ = in.Close(context.WithoutCancel(ctx)) }()
			for ctx.Err() == nil {
				at := time.Now()
				for _, envelope := range []string{promptEnvelope, resultEnvelope, resultEnvelope} {
					if out, _, err := in.Step(t.Context(), []byte(envelope), plentyFuel, stepTimeout); err != nil {
						t.Errorf("a well-behaved guest: %v %s", err, out)
						return
					}
				}
				turn := time.Since(at)
				mu.Lock()
				took = append(took, turn)
				mu.Unlock()
				time.Sleep(pause)
			}
		})
	}
	working.Wait()
	return took, count.Load()
}

// runOtherGuest starts a guest, and runs at most 100 of its steps. It stops earlier if a step fails or ctx is done. It
// adds the number of steps to the parameter count.
func runOtherGuest(ctx context.Context, s *worker.Supervisor, digest string, count *atomic.Int64) error {
	in, _, err := s.Start(ctx, digest, limits, engine.Origin{}, plentyFuel, stepTimeout)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close(context.WithoutCancel(ctx)) }()
	for range 100 {
		_, _, err := in.Step(ctx, []byte(startEnvelope), plentyFuel, hostileDeadline)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, worker.ErrWorkerLost):
			return fmt.Errorf("the guest killed the worker: %w", err)
		}
		if count.Add(1); err != nil {
			return nil // the guest is expected to fail
		}
	}
	return nil
}

func percentile99(took []time.Duration) time.Duration {
	if len(took) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(took))
	return sorted[(len(sorted)-1)*99/100].Round(10 * time.Microsecond)
}

// maxResident returns the peak resident memory of the only worker, in bytes.
func maxResident(t *testing.T, s *worker.Supervisor) int {
	t.Helper()
	pids := s.PIDs()
	if len(pids) != 1 {
		t.Fatalf("%d workers run, want 1", len(pids))
	}
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pids[0]))
	if err != nil {
		t.Skipf("the memory of a worker can be read only on Linux: %v", err)
	}
	for line := range strings.Lines(string(raw)) {
		var kib int
		if _, err := fmt.Sscanf(line, "VmHWM: %d kB", &kib); err == nil {
			return kib << 10
		}
	}
	t.Fatalf("no VmHWM in %s", raw)
	return 0
}

// BenchmarkDeadline measures the time from the deadline of a hostile step to the end of the step.
func BenchmarkDeadline(b *testing.B) {
	s := supervisor(b)
	for _, name := range []string{"W1 an endless loop", "W3 a storm of memory.fill", "W7 a flood of calls"} {
		digest, err := s.Compile(b.Context(), hostileModules()[name].Module())
		if err != nil {
			b.Fatal(err)
		}
		b.Run(strings.ReplaceAll(name, " ", "_"), func(b *testing.B) {
			var late []time.Duration
			for b.Loop() {
				in, _, err := s.Start(b.Context(), digest, limits, engine.Origin{}, plentyFuel, stepTimeout)
				if err != nil {
					b.Fatal(err)
				}
				at := time.Now()
				if _, _, err := in.Step(b.Context(), nil, 1<<60, 50*time.Millisecond); !errors.Is(err, engine.ErrDeadline) {
					b.Fatal(err)
				}
				late = append(late, time.Since(at)-50*time.Millisecond)
				if err := in.Close(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
			slices.Sort(late)
			b.ReportMetric(float64(late[len(late)-1].Microseconds())/1000, "ms-late-at-most")
			b.ReportMetric(float64(late[len(late)/2].Microseconds())/1000, "ms-late")
		})
	}
}
