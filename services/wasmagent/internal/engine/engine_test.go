package engine_test

import (
	"bytes"
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/wasmagent/internal/engine"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/guesttest"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/wasmmeter"
)

// The guest named script requests the effects that its prompt contains, one at a time, and then answers.
func TestStep_GuestAsksForEffects(t *testing.T) {
	t.Parallel()
	in := startInstance(t, compileModule(t, guesttest.Module(t, guesttest.Guests+"script")))
	answer, _ := step(t, in, envelope{"kind": "start", "instructions": "be brief", "max_turns": 3})
	if answer["kind"] != "finish" {
		t.Errorf("start answers %v", answer)
	}
	for _, c := range []struct{ give, want envelope }{
		{
			envelope{"kind": "prompt", "input": "write a.txt hello\ntodo pending write it\nread b.txt\nsleep 1s\nsay well\ndone"},
			envelope{"kind": "fs", "sequence": 2., "op": "write_file", "path": "a.txt", "content": "hello"},
		},
		{
			envelope{"kind": "effect_result"},
			envelope{"kind": "todo", "sequence": 3., "todos": []any{map[string]any{"content": "write it", "status": "pending"}}},
		},
		{
			envelope{"kind": "effect_result"},
			envelope{"kind": "fs", "sequence": 4., "op": "read_file", "path": "b.txt"},
		},
		{
			envelope{"kind": "effect_result", "error": map[string]any{"code": "file_unknown", "message": "there is no b.txt"}},
			envelope{"kind": "sleep", "sequence": 5., "milliseconds": 1000.},
		},
		{
			envelope{"kind": "effect_result"},
			envelope{"kind": "finish", "sequence": 6., "text": "line 3: file_unknown: there is no b.txt\nwell", "done": true},
		},
	} {
		if got, _ := step(t, in, c.give); !reflect.DeepEqual(got, c.want) {
			t.Fatalf("%v answers %v, want %v", c.give, got, c.want)
		}
	}
}

// A guest that waits for an effect receives a cancel envelope. It ends its turn, and then accepts the next prompt.
func TestStep_CancelEndsPrompt(t *testing.T) {
	t.Parallel()
	in := startInstance(t, compileModule(t, guesttest.Module(t, guesttest.Guests+"script")))
	step(t, in, envelope{"kind": "start"})
	step(t, in, envelope{"kind": "prompt", "input": "emit one\nemit two"})
	answer, _ := step(t, in, envelope{"kind": "cancel"})
	if answer["kind"] != "fail" {
		t.Errorf("cancel answers %v", answer)
	}
	if answer, _ = step(t, in, envelope{"kind": "prompt", "input": "say again"}); answer["text"] != "again" {
		t.Errorf("the next prompt answers %v", answer)
	}
}

// turnEnvelopes contains the envelopes of a turn in which the guest computes, allocates memory and waits.
var turnEnvelopes = []envelope{
	{"kind": "start"},
	{"kind": "prompt", "input": strings.Repeat("emit something of some length\nwrite a.txt b\ntodo pending c\n", 20)},
	{"kind": "effect_result"}, {"kind": "effect_result"}, {"kind": "effect_result"}, {"kind": "effect_result"},
}

func TestStep_IsDeterministic(t *testing.T) {
	t.Parallel()
	text := guesttest.Module(t, guesttest.Guests+"script")
	a, b := startInstance(t, compileModule(t, text)), startInstance(t, compileModule(t, text))
	for _, e := range turnEnvelopes {
		gotA, fuelA := step(t, a, e)
		gotB, fuelB := step(t, b, e)
		if !reflect.DeepEqual(gotA, gotB) || fuelA != fuelB || fuelA <= 0 {
			t.Errorf("%v answers %v for %d, and %v for %d", e, gotA, fuelA, gotB, fuelB)
		}
	}
}

// Cases W1, W2, W3 and W7. Each kind of endless computation ends when the fuel is used up or when the deadline has
// passed. Afterwards, the instance can't be used.
func TestStep_EndlessWorkEnds(t *testing.T) {
	t.Parallel()
	for name, h := range map[string]guesttest.HandMade{
		"W1 an endless loop": {Step: guesttest.Endless},
		"W2 recursion without a loop": {
			Step: guesttest.Concat(guesttest.I32(40), guesttest.Code{0x10, 3, 0x1a}, guesttest.Answer(0, 0)),
			// The function computes f(n) = n == 0 ? 0 : f(n-1) + f(n-1), which needs about 2^n calls.
			More: []guesttest.Code{guesttest.Concat(guesttest.Code{0x20, 0, 0x45, 0x04, 0x7f}, guesttest.I32(0), guesttest.Code{0x05, 0x20, 0}, guesttest.I32(1), guesttest.Code{0x6b, 0x10, 3, 0x20, 0}, guesttest.I32(1), guesttest.Code{0x6b, 0x10, 3, 0x6a, 0x0b})},
		},
		"W3 a storm of memory.fill": {
			Memory: []byte{1, 0, 0x80, 1}, // 128 pages
			Step:   guesttest.Concat(guesttest.Code{0x03, 0x40}, guesttest.I32(0), guesttest.I32(1), guesttest.I32(8<<20), guesttest.Code{0xfc, 11, 0, 0x0c, 0, 0x0b, 0x00}),
		},
		"W7 a flood of calls of the host": {
			Imports: guesttest.Import("sched_yield", 0),
			Step:    guesttest.Concat(guesttest.Code{0x03, 0x40, 0x10, 0, 0x1a, 0x0c, 0, 0x0b, 0x00}),
		},
		"W1 in alloc": {Alloc: guesttest.Endless},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := compileModule(t, h.Module())
			in := startInstance(t, p)
			_, used, err := in.Step(t.Context(), []byte("{}"), 50_000_000)
			if !errors.Is(err, engine.ErrFuel) || used > 50_000_000 || used < 49_000_000 {
				t.Errorf("after its fuel is used up, it ends with %v, having used %d", err, used)
			}
			if _, _, repeated := in.Step(t.Context(), []byte("{}"), plentyFuel); !errors.Is(repeated, err) {
				t.Errorf("a step after that returns %v", repeated)
			}
			if _, err := in.Snapshot(); err == nil {
				t.Error("a snapshot of the failed instance was taken")
			}
			in = startInstance(t, p)
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			if _, _, err := in.Step(ctx, []byte("{}"), 1<<60); !errors.Is(err, engine.ErrDeadline) {
				t.Errorf("after its deadline it ends with %v", err)
			}
		})
	}
}

// Case W7. A guest makes many host calls without a loop. It ends when its fuel is used up, before it reaches the end of
// its code.
func TestStep_HostCallsUseFuel(t *testing.T) {
	t.Parallel()
	write := guesttest.Concat(guesttest.I32(1), guesttest.I32(0), guesttest.I32(1), guesttest.I32(16), guesttest.Code{0x10, 0, 0x1a})
	step := guesttest.Concat(guesttest.I32(4), guesttest.I32(1), guesttest.Code{0x36, 2, 0}) // one byte to write
	for range 2000 {
		step = append(step, write...)
	}
	in := startInstance(t, compileModule(t, guesttest.HandMade{Imports: guesttest.Import("fd_write", 3), Step: append(step, guesttest.Answer(0, 0)...)}.Module()))
	_, used, err := in.Step(t.Context(), []byte("{}"), 50_000)
	if wrote := len(in.Printed()); !errors.Is(err, engine.ErrFuel) || used != 50_000 || wrote < 100 || wrote > 300 {
		t.Errorf("the guest ends with %v, having used %d and written %d bytes", err, used, wrote)
	}
}

// Cases W2, W4, W8, W9 and W11. A fault in a guest ends that guest and does not affect other guests.
func TestStep_FaultEndsOnlyItsGuest(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		h    guesttest.HandMade
		want error
		says string
	}{
		"W4 memory without end": {
			guesttest.HandMade{Step: guesttest.Concat(guesttest.Code{0x03, 0x40}, guesttest.I32(16), guesttest.Code{0x40, 0, 0x1a, 0x0c, 0, 0x0b, 0x00})}, engine.ErrMemory, "",
		},
		"W2 a stack without end": {
			guesttest.HandMade{Step: guesttest.Concat(guesttest.I32(1), guesttest.Code{0x10, 3, 0x1a}, guesttest.Answer(0, 0)), More: []guesttest.Code{{0x20, 0, 0x10, 3, 0x10, 3}}}, engine.ErrTrap, "stack overflow",
		},
		"W8 an answer behind the end": {guesttest.HandMade{Step: guesttest.Answer(1<<16-1, 2)}, engine.ErrTrap, "beyond the end"},
		"W8 memory behind the end":    {guesttest.HandMade{Alloc: guesttest.I32(-1)}, engine.ErrTrap, "beyond the end"},
		"W9 a flood of output":        {guesttest.HandMade{Step: guesttest.Answer(0, 2<<20)}, engine.ErrTrap, "2097152 bytes"},
		"W11 a trap":                  {guesttest.HandMade{Step: guesttest.Code{0x00}}, engine.ErrTrap, "unreachable"},
		"W11 no such memory":          {guesttest.HandMade{Step: guesttest.Concat(guesttest.I32(-4), guesttest.Code{0x29, 3, 0})}, engine.ErrTrap, "out of bounds"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := compileModule(t, c.h.Module())
			in, good := startInstance(t, p), startInstance(t, compileModule(t, guesttest.HandMade{}.Module()))
			_, _, err := in.Step(t.Context(), []byte("{}"), plentyFuel)
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("the guest ends with %v, want %v and %q", err, c.want, c.says)
			}
			if _, _, err := good.Step(t.Context(), []byte("{}"), plentyFuel); err != nil {
				t.Errorf("another guest ends with %v", err)
			}
		})
	}
}

// Case W13. While an instance runs a step, it refuses a second step.
func TestStep_IsRefusedWhileAnotherRuns(t *testing.T) {
	t.Parallel()
	in := startInstance(t, compileModule(t, guesttest.HandMade{Step: guesttest.Endless}.Module()))
	ctx, cancel := context.WithCancel(t.Context())
	first := make(chan error)
	go func() {
		_, _, err := in.Step(ctx, []byte("{}"), 1<<60)
		first <- err
	}()
	for {
		_, _, err := in.Step(ctx, []byte("{}"), 1)
		if err != nil && strings.Contains(err.Error(), "another call uses the instance") {
			break
		}
		if errors.Is(err, engine.ErrFuel) { // this step began before the other step
			t.Skip("the second step began first")
		}
	}
	cancel()
	if err := <-first; !errors.Is(err, engine.ErrDeadline) {
		t.Errorf("the first step ends with %v", err)
	}
}

// A module that is not a guest is refused with an error that names the missing part.
func TestCompile_RefusesModulesThatAreNotGuests(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	start := guesttest.HandMade{}.Module()
	for name, c := range map[string]struct {
		text []byte
		says string
	}{
		"no module":                {[]byte("hello"), "version 1"},
		"a module without exports": {[]byte{0, 'a', 's', 'm', 1, 0, 0, 0, 5, 3, 1, 0, 1}, `"memory"`},
		"another import":           {guesttest.HandMade{Imports: guesttest.Import("path_symlink", 0)}.Module(), `"path_symlink" of "wasi_snapshot_preview1"; guests get`},
		"another signature":        {guesttest.HandMade{Imports: guesttest.Import("sched_yield", 1)}.Module(), "another signature"},
		"no step":                  {bytes.Replace(start, []byte("\x04step"), []byte("\x04stop"), 1), `the function "step"`},
		"another memory":           {bytes.Replace(start, []byte("memory"), []byte("Memory"), 1), `"memory"`},
		"invalid code":             {guesttest.HandMade{Step: guesttest.I32(1)}.Module(), "not a WebAssembly module"},
	} {
		_, err := e.Compile(t.Context(), c.text)
		if err == nil || !strings.Contains(err.Error(), c.says) || !errors.Is(err, wasmmeter.ErrUnsupported) && !errors.Is(err, wasmmeter.ErrMalformed) {
			t.Errorf("%s is refused with %v, want %q", name, err, c.says)
		}
	}
}

func TestStart_RefusesModuleWithTooMuchMemory(t *testing.T) {
	t.Parallel()
	p := compileModule(t, guesttest.HandMade{Memory: []byte{1, 0, 2}}.Module())
	if _, _, err := p.Start(t.Context(), engine.Limits{Memory: 1 << 16}, engine.Origin{}, plentyFuel); !errors.Is(err, engine.ErrMemory) {
		t.Errorf("the start returns %v, want %v", err, engine.ErrMemory)
	}
}

// BenchmarkStep measures one step in which the guest named script requests an effect.
func BenchmarkStep(b *testing.B) {
	in := startInstance(b, compileModule(b, guesttest.Module(b, guesttest.Guests+"script")))
	step(b, in, envelope{"kind": "start"})
	step(b, in, envelope{"kind": "prompt", "input": strings.Repeat("emit x\n", 100_000)})
	result := envelope{"kind": "effect_result"}.text()
	for b.Loop() {
		if _, _, err := in.Step(b.Context(), result, plentyFuel); err != nil {
			b.Fatal(err)
		}
	}
}
