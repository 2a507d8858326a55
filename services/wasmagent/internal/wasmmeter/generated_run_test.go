package wasmmeter_test

import (
	"testing"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
	"pgregory.net/rapid"

	"github.com/sluice-mesh/sluice/services/wasmagent/internal/wasmmeter"
)

// A generated program computes the same results as a plain module, as a metered module, and in this test's interpreter.
// If minSeparate is 0, the counted fuel must be exact. With the default minSeparate, it must be at least the exact
// fuel. The size of the refills must not change the results.
func TestMetered_ComputesSameResults(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		functions := program(rt)
		interpreter := &machine{functions: functions, memory: make([]byte, memorySize), pages: 1}
		interpreter.call(len(functions) - 1)
		if interpreter.instructions > maxInstructions {
			rt.Skip("takes too long")
		}
		text := wasm(functions)
		exact := interpreter.instructions + interpreter.bytes + interpreter.added*8192 + interpreter.points
		plain := runProgram(t, rt, text, 0)
		plain.checkSame(rt, interpreter)
		for _, each := range []int64{1, 777, 1_000_000} {
			fine := runProgram(t, rt, meterAt(t, text, 0), each)
			fine.checkSame(rt, interpreter)
			if fine.fuel != exact {
				rt.Fatalf("uses %d with the grain 0 and refills of %d; want %d", fine.fuel, each, exact)
			}
		}
		coarse := runProgram(t, rt, meterAt(t, text, wasmmeter.Grain), 1000)
		coarse.checkSame(rt, interpreter)
		if coarse.fuel < exact {
			rt.Fatalf("uses %d, less than the exact cost of %d", coarse.fuel, exact)
		}
	})
}

type programResult struct {
	memory  []byte
	globals [globals]int32
	fuel    int64
}

type testFailer interface {
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

func runProgram(t *testing.T, rt testFailer, text []byte, each int64) programResult {
	t.Helper()
	e := newEngine(t, wazero.NewRuntimeConfigCompiler())
	defer e.Close(t.Context())
	if each > 0 {
		e.each = each
	}
	in, err := e.Instantiate(t.Context(), text)
	if err != nil {
		rt.Fatal(err)
	}
	if _, err := in.ExportedFunction("run").Call(t.Context()); err != nil {
		rt.Fatal(err)
	}
	memory, _ := in.Memory().Read(0, memorySize)
	r := programResult{memory: memory}
	if each == 0 {
		return r
	}
	r.fuel = e.used(in)
	for i, name := range []string{"sluice.global.0", "sluice.global.1"} {
		r.globals[i] = api.DecodeI32(in.ExportedGlobal(name).Get())
	}
	return r
}

func (r programResult) checkSame(rt testFailer, interpreter *machine) {
	if string(r.memory) != string(interpreter.memory) {
		rt.Fatal("the memory differs")
	}
	if r.fuel > 0 && r.globals != interpreter.globals {
		rt.Fatalf("globals are %v, want %v", r.globals, interpreter.globals)
	}
}
