package module_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
	"github.com/tetratelabs/wazero/imports/wasi_snapshot_preview1"

	"github.com/sluice-mesh/sluice/services/wasmagent/internal/guesttest"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/module"
)

// work is what the guest's functions are called with: some ten milliseconds each.
var work = []struct {
	name string
	n    uint64
}{{"spin", 10_000_000}, {"fib", 25}, {"codec", 400}, {"hash", 10_000}, {"order", 2}, {"text", 40}, {"matrix", 20}}

func guest(t testing.TB) []byte {
	t.Helper()
	return guesttest.Module(t, "./testdata/guest")
}

// compile compiles the guest, for start.
func (e *engine) compile(t testing.TB, text []byte) wazero.CompiledModule {
	t.Helper()
	wasi_snapshot_preview1.MustInstantiate(t.Context(), e)
	c, err := e.CompileModule(t.Context(), text)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// start starts an instance.
func (e *engine) start(t testing.TB, c wazero.CompiledModule) api.Module {
	t.Helper()
	in, err := e.InstantiateModule(t.Context(), c, wazero.NewModuleConfig().WithName("").WithStartFunctions("_initialize"))
	if err != nil {
		t.Fatal(err)
	}
	return in
}

// TestAGuestTakesTheSameFuelEachTime runs each kind of work a hundred times.
func TestAGuestTakesTheSameFuelEachTime(t *testing.T) {
	t.Parallel()
	e := newEngine(t, wazero.NewRuntimeConfigCompiler())
	c := e.compile(t, metered(t, guest(t), module.Grain))
	for _, w := range work {
		var first int64
		for i := range 100 {
			e.granted, e.each = 0, int64(1000+i*777)
			in := e.start(t, c)
			got, err := called(t.Context(), in, in.ExportedFunction(w.name), max(1, w.n/1000))
			if err != nil {
				t.Fatal(err)
			}
			used := e.used(in)
			if first == 0 {
				first = used
			}
			if used != first {
				t.Fatalf("%s takes %d in run %d and %d in the first, result %d", w.name, used, i, first, got)
			}
			if err := in.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// BenchmarkFuel measures the same work in a plain module, in one that the engine stops
// when its context ends, and in metered ones of several grains.
func BenchmarkFuel(b *testing.B) {
	type side struct {
		name   string
		engine *engine
		in     api.Module
	}
	var sides []side
	add := func(name string, cfg wazero.RuntimeConfig, text []byte) {
		e := newEngine(b, cfg)
		e.each, e.most = 100_000, 1<<60
		sides = append(sides, side{name, e, e.start(b, e.compile(b, text))})
	}
	plain := guest(b)
	add("plain", wazero.NewRuntimeConfigCompiler(), plain)
	add("closed", wazero.NewRuntimeConfigCompiler().WithCloseOnContextDone(true), plain)
	for _, grain := range []int64{0, module.Grain, 12} {
		add(fmt.Sprintf("grain=%d", grain), wazero.NewRuntimeConfigCompiler(), metered(b, plain, grain))
	}
	for _, w := range work {
		for _, s := range sides {
			f := s.in.ExportedFunction(w.name)
			b.Run(w.name+"/"+s.name, func(b *testing.B) {
				before := s.engine.granted
				ctx, cancel := context.WithCancel(b.Context()) // or there is nothing to look at
				defer cancel()
				for range b.N {
					if _, err := called(ctx, s.in, f, w.n); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(s.engine.granted-before)/float64(b.N), "fuel/op")
			})
		}
	}
}
