package worker_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/internal/eventually"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/engine"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/worker"
)

const (
	plenty = 2_000_000_000
	mib    = 1 << 20
	// soon is far more than a step takes.
	soon = 20 * time.Second
)

var limits = engine.Limits{Memory: 32 * mib, Envelope: mib}

// program is what the tests' workers are: without the race detector, with which compiling a
// guest takes half a minute.
var program = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "wasmagent-*")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "wasmagent")
	if out, err := exec.Command("go", "build", "-o", path, "../../cmd/wasmagent").CombinedOutput(); err != nil {
		return "", errors.Join(err, errors.New(string(out)))
	}
	return path, nil
})

// TestMain runs the tests.
func TestMain(m *testing.M) {
	code := m.Run()
	if path, err := program(); err == nil {
		_ = os.RemoveAll(filepath.Dir(path))
	}
	os.Exit(code)
}

// script is the shipped guest of scripts, built once.
var script = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "guest")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "script.wasm")
	cmd := exec.Command("go", "build", "-buildmode=c-shared", "-trimpath", "-o", path, "github.com/sluice-mesh/sluice/sdk/guests/script")
	cmd.Env = append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm", "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, errors.Join(err, errors.New(string(out)))
	}
	return os.ReadFile(path)
})

// supervisor has a worker of this test's program.
func supervisor(t *testing.T, change ...func(*worker.Config)) *worker.Supervisor {
	t.Helper()
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}
	cfg := worker.Config{Program: path, Cache: t.TempDir(), Memory: 512 * mib, CompileTime: soon, CompileMemory: 1024 * mib}
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

// compiled compiles the guest of scripts.
func compiled(t *testing.T, s *worker.Supervisor) string {
	t.Helper()
	text, err := script()
	if err != nil {
		t.Fatal(err)
	}
	digest, err := s.Compile(t.Context(), text)
	if err != nil {
		t.Fatal(err)
	}
	return digest
}

func started(t *testing.T, s *worker.Supervisor, digest string) *worker.Instance {
	t.Helper()
	in, fuel, err := s.Start(t.Context(), digest, limits, engine.Origin{}, plenty, soon)
	if err != nil || fuel <= 0 {
		t.Fatal(fuel, err)
	}
	return in
}

func step(t *testing.T, in *worker.Instance, envelope string) string {
	t.Helper()
	out, fuel, err := in.Step(t.Context(), []byte(envelope), plenty, soon)
	if err != nil || fuel <= 0 {
		t.Fatal(fuel, err)
	}
	return string(out)
}

const (
	begin  = `{"kind":"start"}`
	prompt = `{"kind":"prompt","input":"emit one\nemit two\nsay three"}`
	result = `{"kind":"effect_result"}`
)

// TestW14AWorkerMayDieAtAnyTime kills it a hundred times; each time its guests are gone, it
// is said so, and they go on from their snapshots as if nothing had been.
func TestW14AWorkerMayDieAtAnyTime(t *testing.T) {
	t.Parallel()
	s := supervisor(t)
	digest := compiled(t, s)
	in := started(t, s, digest)
	step(t, in, begin)
	if said := step(t, in, prompt); !strings.Contains(said, `"text":"one"`) {
		t.Fatal(said)
	}
	snapshot, err := in.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := step(t, in, result)
	for i := range 100 {
		s.Kill()
		if _, _, err := in.Step(t.Context(), []byte(result), plenty, soon); !errors.Is(err, worker.ErrLost) {
			t.Fatalf("kill %d: a step in a dead worker is %v", i, err)
		}
		if in, err = s.Restore(t.Context(), digest, limits, snapshot); err != nil {
			t.Fatalf("kill %d: %v", i, err)
		}
		if got := step(t, in, result); got != want {
			t.Fatalf("kill %d: goes on with %s, want %s", i, got, want)
		}
	}
}

// TestAStepInADyingWorkerIsLost has the worker die in the middle of a step.
func TestAStepInADyingWorkerIsLost(t *testing.T) {
	t.Parallel()
	s := supervisor(t)
	digest, err := s.Compile(t.Context(), endless)
	if err != nil {
		t.Fatal(err)
	}
	in := started(t, s, digest)
	came := make(chan error)
	go func() {
		_, _, err := in.Step(t.Context(), nil, 1<<60, time.Hour)
		came <- err
	}()
	time.AfterFunc(50*time.Millisecond, s.Kill)
	if err := <-came; !errors.Is(err, worker.ErrLost) {
		t.Errorf("the step is %v", err)
	}
}

// endless is a guest whose step never ends: handMade of the engine's tests, in bytes.
var endless = []byte("\x00asm\x01\x00\x00\x00\x01\x10\x03\x60\x00\x01\x7f\x60\x01\x7f\x01\x7f\x60\x02\x7f\x7f\x01\x7e\x03\x04\x03\x00\x01\x02\x05\x03\x01\x00\x01\x07\x27\x04\x0babi_version\x00\x00\x05alloc\x00\x01\x04step\x00\x02\x06memory\x02\x00\x0a\x15\x03\x04\x00\x41\x01\x0b\x05\x00\x41\x80\x08\x0b\x08\x00\x03\x40\x0c\x00\x0b\x00\x0b")

// TestGuestsShareTheWorker has steps end beside guests that never do, and those end by
// their deadline, their fuel, or when nobody waits any more.
func TestGuestsShareTheWorker(t *testing.T) {
	t.Parallel()
	s := supervisor(t)
	digest := compiled(t, s)
	bad, err := s.Compile(t.Context(), endless)
	if err != nil {
		t.Fatal(err)
	}
	const many = 8
	came := make(chan error, many)
	ctx, cancel := context.WithCancel(t.Context())
	for range many {
		in := started(t, s, bad)
		go func() {
			_, _, err := in.Step(ctx, nil, 1<<60, time.Hour)
			came <- err
		}()
	}
	in := started(t, s, digest)
	step(t, in, begin)
	for range 20 {
		step(t, in, prompt)
		step(t, in, result)
		if said := step(t, in, result); !strings.Contains(said, `"text":"three"`) {
			t.Fatal(said)
		}
	}
	if _, _, err := started(t, s, bad).Step(t.Context(), nil, plenty/100, soon); !errors.Is(err, engine.ErrFuel) {
		t.Errorf("by its fuel it ends with %v", err)
	}
	if _, used, err := started(t, s, bad).Step(t.Context(), nil, 1<<60, 50*time.Millisecond); !errors.Is(err, engine.ErrDeadline) || used == 0 {
		t.Errorf("by its deadline it ends with %v, having taken %d", err, used)
	}
	cancel()
	for range many {
		if err := <-came; err == nil {
			t.Error("a step that never ends ended")
		}
	}
	eventually.Holds(t, "nobody works", func() bool { // the worker is idle: a whole turn is quick again
		begin := time.Now()
		step(t, in, prompt)
		step(t, in, result)
		step(t, in, result)
		return time.Since(begin) < time.Second
	})
}

// TestW5CompilingIsBounded has a module that takes too long, or too much, be refused, and
// what is no guest be refused with why.
func TestW5CompilingIsBounded(t *testing.T) {
	t.Parallel()
	text, err := script()
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		change func(*worker.Config)
		module []byte
		says   string
	}{
		"too long":  {func(c *worker.Config) { c.CompileTime = 10 * time.Millisecond }, text, "takes longer than 10ms"},
		"too much":  {func(c *worker.Config) { c.CompileMemory = 48 * mib }, text, "takes more than 48 MiB"},
		"no module": {func(*worker.Config) {}, []byte("no"), "is no WebAssembly module"},
	} {
		if _, err := supervisor(t, c.change).Compile(t.Context(), c.module); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %q", name, err, c.says)
		}
	}
}

// TestOneAtATime has an instance refuse a second step.
func TestOneAtATime(t *testing.T) {
	t.Parallel()
	s := supervisor(t)
	digest, err := s.Compile(t.Context(), endless)
	if err != nil {
		t.Fatal(err)
	}
	in := started(t, s, digest)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		for ctx.Err() == nil { // it may come while a snapshot is taken
			_, _, _ = in.Step(ctx, nil, 1<<60, time.Hour)
		}
	}()
	eventually.Holds(t, "the second is refused", func() bool {
		_, err := in.Snapshot(t.Context())
		return errors.Is(err, worker.ErrBusy)
	})
}
