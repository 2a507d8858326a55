package wasmmeter_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
	"github.com/tetratelabs/wazero/imports/wasi_snapshot_preview1"

	"github.com/sluice-mesh/sluice/services/wasmagent/internal/guesttest"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/wasmmeter"
)

// workloads contains the functions of the test guest and an argument for each function. With this argument, the
// function runs for some tens of milliseconds.
var workloads = []struct {
	name string
	n    uint64
}{{"spin", 10_000_000}, {"fib", 25}, {"codec", 400}, {"hash", 10_000}, {"order", 2}, {"text", 40}, {"matrix", 20}}

func guestModule(t testing.TB) []byte {
	t.Helper()
	return guesttest.Module(t, "./testdata/guest")
}

func (e *engine) compile(t testing.TB, text []byte) wazero.CompiledModule {
	t.Helper()
	c, err := e.CompileModule(t.Context(), text)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (e *engine) start(t testing.TB, c wazero.CompiledModule) api.Module {
	t.Helper()
	in, err := e.InstantiateModule(t.Context(), c, wazero.NewModuleConfig().WithName("").WithStartFunctions("_initialize"))
	if err != nil {
		t.Fatal(err)
	}
	return in
}

// TestMetered_FuelIsDeterministic checks that each workload uses the same fuel in a hundred runs, regardless of the
// size of the refills.
func TestMetered_FuelIsDeterministic(t *testing.T) {
	t.Parallel()
	e := newEngine(t, wazero.NewRuntimeConfigCompiler())
	wasi_snapshot_preview1.MustInstantiate(t.Context(), e)
	plain, c := e.start(t, e.compile(t, guestModule(t))), e.compile(t, meterAt(t, guestModule(t), wasmmeter.Grain))
	for _, w := range workloads {
		n := max(1, w.n/1000)
		want, err := callFunction(t.Context(), plain, plain.ExportedFunction(w.name), n)
		if err != nil {
			t.Fatal(err)
		}
		var first int64
		for i := range 100 {
			e.granted, e.each = 0, int64(1+i*777) // the first run gets one unit at a time
			in := e.start(t, c)
			got, err := callFunction(t.Context(), in, in.ExportedFunction(w.name), n)
			if err != nil {
				t.Fatal(err)
			}
			used := e.used(in)
			if first == 0 {
				first = used
			}
			if used != first || !slices.Equal(got, want) {
				t.Fatalf("%s uses %d in run %d and %d in the first, result %d, want %d", w.name, used, i, first, got, want)
			}
			if err := in.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// shiftedModule returns a module whose functions are at higher addresses. To shift them, it adds the given number of
// no-op instructions to the first function. Benchmarks need different addresses because the speed of a small loop
// depends as much on its address as on its code.
func shiftedModule(t testing.TB, text []byte, times int) []byte {
	t.Helper()
	const codeSection, globalGet, globalSet = 10, 0x23, 0x24
	number := func(at int) (n, next int) {
		v, size := binary.Uvarint(text[at:])
		if size <= 0 {
			t.Fatalf("no number at %d", at)
		}
		return int(v), at + size
	}
	at := 8
	for text[at] != codeSection {
		size, next := number(at + 1)
		at = next + size
	}
	size, body := number(at + 1)
	end := body + size
	_, first := number(body)
	length, locals := number(first)
	runs, code := number(locals)
	for range runs {
		_, code = number(code)
		code++
	}
	nothing := bytes.Repeat([]byte{globalGet, 0, globalSet, 0}, times)
	section := slices.Clone(text[body:first])
	section = binary.AppendUvarint(section, uint64(length+len(nothing)))
	section = slices.Concat(section, text[locals:code], nothing, text[code:end])
	out := binary.AppendUvarint(slices.Clone(text[:at+1]), uint64(len(section)))
	return slices.Concat(out, section, text[end:])
}

// BenchmarkFuel compares the speed of the same work in several modules: the plain module, the plain module in an engine
// that checks the context, and metered modules with several values of minSeparateCharge. Each module runs at several
// addresses. The benchmark reports the fuel. It also reports the time of the fastest run, divided by the time of the
// plain module's fastest run.
func BenchmarkFuel(b *testing.B) {
	const places = 8
	type side struct {
		name   string
		engine *engine
		in     []api.Module
	}
	var sides []*side
	add := func(name string, cfg wazero.RuntimeConfig, text func(plain []byte) []byte) {
		s := &side{name: name, engine: newEngine(b, cfg)}
		s.engine.each, s.engine.most = 100_000, 1<<60
		wasi_snapshot_preview1.MustInstantiate(b.Context(), s.engine)
		for i := range places {
			s.in = append(s.in, s.engine.start(b, s.engine.compile(b, text(shiftedModule(b, guestModule(b), i)))))
		}
		sides = append(sides, s)
	}
	plain := func(text []byte) []byte { return text }
	add("plain", wazero.NewRuntimeConfigCompiler(), plain)
	add("closed", wazero.NewRuntimeConfigCompiler().WithCloseOnContextDone(true), plain)
	for _, minSeparate := range []int64{0, wasmmeter.Grain, 12} {
		add(fmt.Sprintf("minSeparate=%d", minSeparate), wazero.NewRuntimeConfigCompiler(), func(text []byte) []byte { return meterAt(b, text, minSeparate) })
	}
	ctx, cancel := context.WithCancel(b.Context()) // an engine checks a context only if it can be cancelled
	defer cancel()
	for _, w := range workloads {
		b.Run(w.name, func(b *testing.B) {
			fastest, before := make([][places]time.Duration, len(sides)), make([]int64, len(sides))
			for i, s := range sides {
				before[i] = s.engine.granted
			}
			for range b.N {
				for i, s := range sides {
					for place, in := range s.in {
						start := time.Now()
						if _, err := callFunction(ctx, in, in.ExportedFunction(w.name), w.n); err != nil {
							b.Fatal(err)
						}
						if took := time.Since(start); fastest[i][place] == 0 || took < fastest[i][place] {
							fastest[i][place] = took
						}
					}
				}
			}
			all := func(i int) (sum float64) {
				for _, took := range fastest[i] {
					sum += float64(took)
				}
				return sum
			}
			for i, s := range sides[1:] {
				b.ReportMetric(all(i+1)/all(0), s.name+"/plain")
				b.ReportMetric(float64(s.engine.granted-before[i+1])/float64(b.N)/places, s.name+"-fuel")
			}
		})
	}
}
