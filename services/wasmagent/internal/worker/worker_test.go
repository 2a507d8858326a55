package worker_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/internal/eventually"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/engine"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/guesttest"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/worker"
)

const (
	plentyFuel = 2_000_000_000
	mib        = 1 << 20
	// stepTimeout is much longer than any step should take.
	stepTimeout = 20 * time.Second
)

var limits = engine.Limits{Memory: 32 * mib, Envelope: mib}

func TestMain(m *testing.M) { os.Exit(guesttest.Main(m)) }

func scriptModule(t testing.TB) []byte {
	t.Helper()
	return guesttest.Module(t, guesttest.Guests+"script")
}

func supervisor(t testing.TB, change ...func(*worker.Config)) *worker.Supervisor {
	t.Helper()
	cfg := worker.Config{Program: guesttest.Program(t), Cache: guesttest.Cache(t), Workers: 1, Guests: 18, Memory: 512 * mib, CompileTime: stepTimeout, CompileMemory: 1024 * mib}
	for _, c := range change {
		c(&cfg)
	}
	s, err := worker.NewSupervisor(cfg, slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func compileScript(t testing.TB, s *worker.Supervisor) string {
	t.Helper()
	digest, err := s.Compile(t.Context(), scriptModule(t))
	if err != nil {
		t.Fatal(err)
	}
	return digest
}

func startInstance(t testing.TB, s *worker.Supervisor, digest string) *worker.Instance {
	t.Helper()
	in, fuel, err := s.Start(t.Context(), digest, limits, engine.Origin{}, plentyFuel, stepTimeout)
	if err != nil || fuel <= 0 {
		t.Fatal(fuel, err)
	}
	return in
}

func step(t testing.TB, in *worker.Instance, envelope string) string {
	t.Helper()
	out, fuel, err := in.Step(t.Context(), []byte(envelope), plentyFuel, stepTimeout)
	if err != nil || fuel <= 0 {
		t.Fatal(fuel, err)
	}
	return string(out)
}

const (
	startEnvelope  = `{"kind":"start"}`
	promptEnvelope = `{"kind":"prompt","input":"emit one\nemit two\nsay three"}`
	resultEnvelope = `{"kind":"effect_result"}`
)

// Case W14. Guests can be restored from snapshots after their worker was killed. The test kills a worker a hundred
// times. A step in a killed worker returns [worker.ErrWorkerLost].
func TestRestore_ContinuesAfterWorkerWasKilled(t *testing.T) {
	t.Parallel()
	s := supervisor(t)
	digest := compileScript(t, s)
	in := startInstance(t, s, digest)
	step(t, in, startEnvelope)
	if answer := step(t, in, promptEnvelope); !strings.Contains(answer, `"text":"one"`) {
		t.Fatal(answer)
	}
	snapshot, err := in.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := step(t, in, resultEnvelope)
	for i := range 100 {
		s.KillWorkers()
		if _, _, err := in.Step(t.Context(), []byte(resultEnvelope), plentyFuel, stepTimeout); !errors.Is(err, worker.ErrWorkerLost) {
			t.Fatalf("kill %d: a step in a killed worker returns %v", i, err)
		}
		if in, err = s.Restore(t.Context(), digest, limits, snapshot); err != nil {
			t.Fatalf("kill %d: %v", i, err)
		}
		if got := step(t, in, resultEnvelope); got != want {
			t.Fatalf("kill %d: the restored guest answers %s, want %s", i, got, want)
		}
	}
}

// A step returns [worker.ErrWorkerLost] if its worker is killed while the step runs.
func TestStep_ReturnsErrWorkerLostWhenWorkerIsKilled(t *testing.T) {
	t.Parallel()
	s := supervisor(t)
	digest, err := s.Compile(t.Context(), endless)
	if err != nil {
		t.Fatal(err)
	}
	in := startInstance(t, s, digest)
	results := make(chan error)
	go func() {
		_, _, err := in.Step(t.Context(), nil, 1<<60, time.Hour)
		results <- err
	}()
	time.AfterFunc(50*time.Millisecond, s.KillWorkers)
	if err := <-results; !errors.Is(err, worker.ErrWorkerLost) {
		t.Errorf("the step returns %v", err)
	}
}

// Another worker is started only when all running workers have guests. If a worker ends, only the guests in that worker
// are lost.
func TestStart_DistributesGuestsOverWorkers(t *testing.T) {
	t.Parallel()
	s := supervisor(t, func(c *worker.Config) { c.Workers = 3 })
	digest := compileScript(t, s)
	for range 3 {
		in := startInstance(t, s, digest)
		if err := errors.Join(in.Close(t.Context()), in.Close(t.Context())); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(s.PIDs()); n != 1 {
		t.Fatalf("one guest at a time has %d workers", n)
	}
	var guests []*worker.Instance
	for range 6 {
		in := startInstance(t, s, digest)
		step(t, in, startEnvelope)
		guests = append(guests, in)
	}
	pids := s.PIDs()
	if len(pids) != 3 {
		t.Fatalf("six guests have %d workers", len(pids))
	}
	process, err := os.FindProcess(pids[1])
	if err != nil {
		t.Fatal(err)
	}
	if err := process.Kill(); err != nil {
		t.Fatal(err)
	}
	lost := 0
	for _, in := range guests {
		switch _, _, err := in.Step(t.Context(), []byte(promptEnvelope), plentyFuel, stepTimeout); {
		case errors.Is(err, worker.ErrWorkerLost):
			lost++
		case err != nil:
			t.Error(err)
		}
	}
	if lost != 2 {
		t.Errorf("%d of 6 guests are lost with one of 3 workers", lost)
	}
	step(t, startInstance(t, s, digest), startEnvelope)
	if n := len(s.PIDs()); n != 3 {
		t.Errorf("after a start there are %d workers", n)
	}
}

// If all workers are full, a new guest is not started until another guest ends. If the caller that starts the new guest
// cancels the call first, the start fails.
func TestStart_WaitsWhileWorkersAreFull(t *testing.T) {
	t.Parallel()
	s := supervisor(t, func(c *worker.Config) { c.Workers, c.Guests = 2, 2 })
	digest := compileScript(t, s)
	var guests []*worker.Instance
	for range 4 {
		guests = append(guests, startInstance(t, s, digest))
	}
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, _, err := s.Start(short, digest, limits, engine.Origin{}, plentyFuel, stepTimeout); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the start of a guest beyond the maximum returns %v", err)
	}
	results := make(chan *worker.Instance)
	go func() { results <- startInstance(t, s, digest) }()
	select {
	case <-results:
		t.Error("a guest beyond the maximum is started")
	case <-time.After(50 * time.Millisecond):
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel() // Close ends the guest even if ctx is cancelled
	if err := guests[0].Close(cancelled); err != nil {
		t.Error(err)
	}
	step(t, <-results, startEnvelope)
}

var endless = guesttest.HandMade{Step: guesttest.Endless}.Module()

// A step completes even if other guests run endless steps. An endless step is stopped at its deadline, when its fuel is
// used up, or when its caller cancels the call.
func TestStep_EndsNextToEndlessSteps(t *testing.T) {
	t.Parallel()
	s := supervisor(t)
	digest := compileScript(t, s)
	bad, err := s.Compile(t.Context(), endless)
	if err != nil {
		t.Fatal(err)
	}
	const many = 8
	results := make(chan error, many)
	ctx, cancel := context.WithCancel(t.Context())
	for range many {
		in := startInstance(t, s, bad)
		go func() {
			_, _, err := in.Step(ctx, nil, 1<<60, time.Hour)
			results <- err
		}()
	}
	in := startInstance(t, s, digest)
	step(t, in, startEnvelope)
	for range 20 {
		step(t, in, promptEnvelope)
		step(t, in, resultEnvelope)
		if answer := step(t, in, resultEnvelope); !strings.Contains(answer, `"text":"three"`) {
			t.Fatal(answer)
		}
	}
	if _, _, err := startInstance(t, s, bad).Step(t.Context(), nil, plentyFuel/100, stepTimeout); !errors.Is(err, engine.ErrFuel) {
		t.Errorf("after its fuel is used up, it ends with %v", err)
	}
	if _, used, err := startInstance(t, s, bad).Step(t.Context(), nil, 1<<60, 50*time.Millisecond); !errors.Is(err, engine.ErrDeadline) || used == 0 {
		t.Errorf("after its deadline it ends with %v, having used %d", err, used)
	}
	cancel()
	for range many {
		if err := <-results; err == nil {
			t.Error("a step that never ends ended")
		}
	}
	eventually.Holds(t, "no guest runs", func() bool { // a turn is fast only if the worker is idle
		begin := time.Now()
		step(t, in, promptEnvelope)
		step(t, in, resultEnvelope)
		step(t, in, resultEnvelope)
		return time.Since(begin) < time.Second
	})
}

// Case W5. A module is refused if it takes too much time or memory to compile, or if it is not a guest.
func TestCompile_RefusesModulesThatTakeTooMuch(t *testing.T) {
	t.Parallel()
	text := scriptModule(t)
	for name, c := range map[string]struct {
		change func(*worker.Config)
		module []byte
		says   string
	}{
		"too much time":   {func(c *worker.Config) { c.CompileTime = 10 * time.Millisecond }, text, "takes longer than 10ms"},
		"too much memory": {func(c *worker.Config) { c.CompileMemory = 48 * mib }, text, "takes more than 48 MiB"},
		"no module":       {func(*worker.Config) {}, []byte("no"), "is not a WebAssembly module"},
	} {
		if _, err := supervisor(t, c.change).Compile(t.Context(), c.module); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %q", name, err, c.says)
		}
	}
}

func TestSnapshot_IsRefusedWhileStepRuns(t *testing.T) {
	t.Parallel()
	s := supervisor(t)
	digest, err := s.Compile(t.Context(), endless)
	if err != nil {
		t.Fatal(err)
	}
	in := startInstance(t, s, digest)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		for ctx.Err() == nil { // the step fails if a snapshot is being taken
			_, _, _ = in.Step(ctx, nil, 1<<60, time.Hour)
		}
	}()
	eventually.Holds(t, "the second is refused", func() bool {
		_, err := in.Snapshot(t.Context())
		return errors.Is(err, worker.ErrBusy)
	})
}
