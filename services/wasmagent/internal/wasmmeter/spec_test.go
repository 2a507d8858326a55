package wasmmeter_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"

	"github.com/sluice-mesh/sluice/services/wasmagent/internal/wasmmeter"
)

// A scriptCommand is a command in a script of the WebAssembly test suite. The scripts are in the JSON format of
// wast2json.
type scriptCommand struct {
	Type     string
	Line     int
	Filename string
	Name     string
	As       string
	// Text is the reason that a module is invalid.
	Text       string
	ModuleType string `json:"module_type"`
	Action     struct {
		Type, Module, Field string
		Args                []scriptValue
	}
	Expected []scriptValue
}

type scriptValue struct {
	Type     string
	LaneType string `json:"lane_type"`
	Value    any
}

// lanes returns the bits of each lane, the width of a lane in bits, and whether each lane may be any NaN. ok is false
// for types that guests may not use.
func (w scriptValue) lanes() (bits []uint64, width int, nan []bool, ok bool) {
	kind, texts := w.Type, []any{w.Value}
	if w.Type == "v128" {
		kind, texts = w.LaneType, w.Value.([]any)
	}
	switch kind {
	case "i8":
		width = 8
	case "i16":
		width = 16
	case "i32", "f32":
		width = 32
	case "i64", "f64":
		width = 64
	default:
		return nil, 0, nil, false
	}
	for _, text := range texts {
		s := text.(string)
		nan = append(nan, strings.HasPrefix(s, "nan:"))
		v, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			signed, _ := strconv.ParseInt(s, 10, 64)
			v = uint64(signed)
		}
		bits = append(bits, v&(math.MaxUint64>>(64-width)))
	}
	return bits, width, nan, true
}

// stack returns the value in the form that the engine uses on its call stack.
func (w scriptValue) stack() (words []uint64, ok bool) {
	bits, width, _, ok := w.lanes()
	if w.Type != "v128" {
		return bits, ok
	}
	words = make([]uint64, 2)
	for i, b := range bits {
		words[i*width/64] |= b << (i * width % 64)
	}
	return words, ok
}

// matches reports whether the words that the engine returned represent this value.
func (w scriptValue) matches(words []uint64) bool {
	bits, width, nan, _ := w.lanes()
	for i, want := range bits {
		got := words[i*width/64] >> (i * width % 64) & (math.MaxUint64 >> (64 - width))
		switch {
		case nan[i] && width == 32:
			if f := math.Float32frombits(uint32(got)); f == f {
				return false
			}
		case nan[i]:
			if f := math.Float64frombits(got); f == f {
				return false
			}
		case got != want:
			return false
		}
	}
	return true
}

func (w scriptValue) words() int {
	if w.Type == "v128" {
		return 2
	}
	return 1
}

// engineTests returns the directory in the engine's source code that contains the tests of the WebAssembly
// specification.
func engineTests(t *testing.T) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "github.com/tetratelabs/wazero").Output()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(strings.TrimSpace(string(out)), "internal/integration_test/spectest")
}

// TestMetered_PassesSpecificationTests runs the WebAssembly 2.0 test suite with metered modules. A metered module must
// compute the specified results, and an invalid module must be refused. The test skips modules that use features that
// guests may not use.
func TestMetered_PassesSpecificationTests(t *testing.T) {
	t.Parallel()
	scripts, err := filepath.Glob(filepath.Join(engineTests(t), "v2/testdata/*.json"))
	if err != nil || len(scripts) == 0 {
		t.Fatalf("%d scripts, %v", len(scripts), err)
	}
	var all testCounts
	for _, path := range scripts {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var script struct{ Commands []scriptCommand }
		if err := json.Unmarshal(text, &script); err != nil {
			t.Fatal(err)
		}
		r := &runner{t: t, engine: newEngine(t, wazero.NewRuntimeConfigCompiler()), dir: filepath.Dir(path), testCounts: &all}
		r.provideImports()
		for _, c := range script.Commands {
			r.where = fmt.Sprintf("%s:%d", strings.TrimSuffix(filepath.Base(path), ".json"), c.Line)
			r.runCommand(c)
		}
	}
	t.Logf("%+v", all)
	if all.Metered < 1300 || all.Returned < 40_000 || all.Trapped < 500 || all.Refused < 2500 {
		t.Errorf("too few tests: %+v", all)
	}
}

type testCounts struct {
	// Metered is the number of modules that ran. NotOffered is the number of modules that use features that guests may not
	// use. Refused is the number of invalid modules.
	Metered, NotOffered, Refused int
	// Returned is the number of calls that returned, and Trapped is the number of calls that trapped. Passed is the
	// number of calls that were skipped because their modules did not run.
	Returned, Trapped, Passed int
}

type runner struct {
	*testCounts
	t      *testing.T
	engine *engine
	dir    string
	where  string
	// last is the newest module. named contains the modules that have names. A module that uses features that guests
	// may not use is represented by nil.
	last  api.Module
	named map[string]api.Module
	n     int
	// shared is true if modules may share state. unknown is true if a module was skipped after shared was set. The
	// shared state is then unknown.
	shared, unknown bool
}

func (r *runner) provideImports() {
	r.named = make(map[string]api.Module)
	b := r.engine.NewHostModuleBuilder("spectest")
	for name, params := range map[string][]api.ValueType{
		"print": nil, "print_i32": {api.ValueTypeI32}, "print_i64": {api.ValueTypeI64}, "print_f32": {api.ValueTypeF32},
		"print_f64": {api.ValueTypeF64}, "print_i32_f32": {api.ValueTypeI32, api.ValueTypeF32},
		"print_f64_f64": {api.ValueTypeF64, api.ValueTypeF64},
	} {
		b.NewFunctionBuilder().WithGoModuleFunction(api.GoModuleFunc(func(context.Context, api.Module, []uint64) {}), params, nil).Export(name)
	}
	if _, err := b.Instantiate(r.t.Context()); err != nil {
		r.t.Fatal(err)
	}
}

func (r *runner) runCommand(c scriptCommand) {
	switch c.Type {
	case "module":
		r.last = r.load(c)
		if c.Name != "" {
			r.named[c.Name] = r.last
		}
	case "register":
		r.shared = true
	case "action":
		r.call(c)
	case "assert_return":
		r.checkReturn(c)
	case "assert_trap", "assert_exhaustion":
		if _, err, ok := r.call(c); !ok {
			r.Passed++
		} else if err == nil {
			r.t.Errorf("%s: no trap", r.where)
		} else {
			r.Trapped++
		}
	case "assert_invalid", "assert_malformed":
		if c.ModuleType != "text" {
			r.checkRefused(c)
		}
	case "assert_unlinkable", "assert_uninstantiable":
	default:
		r.t.Fatalf("%s: %q is not known", r.where, c.Type)
	}
}

// load parses, meters and starts a module. It returns nil if the module uses features that guests may not use.
func (r *runner) load(c scriptCommand) api.Module {
	text, err := os.ReadFile(filepath.Join(r.dir, c.Filename))
	if err != nil {
		r.t.Fatal(err)
	}
	out, err := meterModule(text)
	if errors.Is(err, wasmmeter.ErrUnsupported) || errors.Is(err, wasmmeter.ErrLimitExceeded) {
		r.countNotOffered()
		return nil
	}
	if err != nil {
		r.t.Errorf("%s: %v", r.where, err)
		return nil
	}
	r.n++
	in, err := r.engine.InstantiateWithConfig(r.t.Context(), out, wazero.NewModuleConfig().WithName(strconv.Itoa(r.n)))
	if err != nil {
		// The metered module may fail to start because a module that it imports is missing, or because the engine
		// refuses the original module, too.
		if _, plain := r.engine.InstantiateWithConfig(r.t.Context(), text, wazero.NewModuleConfig().WithName("")); plain == nil {
			r.t.Errorf("%s: the original starts, but the metered module does not: %v", r.where, err)
		}
		r.countNotOffered()
		return nil
	}
	r.Metered++
	return in
}

// countNotOffered counts a module that does not run. If modules share state, the results of later calls are unknown,
// because the skipped module might have changed the state.
func (r *runner) countNotOffered() {
	r.NotOffered++
	r.unknown = r.unknown || r.shared
}

func meterModule(text []byte) ([]byte, error) {
	m, err := wasmmeter.Parse(text)
	if err != nil {
		return nil, err
	}
	return m.Metered()
}

// checkRefused checks that this package or the engine refuses an invalid module.
func (r *runner) checkRefused(c scriptCommand) {
	text, err := os.ReadFile(filepath.Join(r.dir, c.Filename))
	if err != nil {
		r.t.Fatal(err)
	}
	out, err := meterModule(text)
	if err == nil {
		_, err = r.engine.CompileModule(r.t.Context(), out)
	}
	if err == nil {
		r.t.Errorf("%s: an invalid module (%s) runs metered", r.where, c.Text)
	}
	r.Refused++
}

// call executes the action of a command. ok is false if the module of the action does not run.
func (r *runner) call(c scriptCommand) (words []uint64, _ error, ok bool) {
	in := r.last
	if c.Action.Module != "" {
		in = r.named[c.Action.Module]
	}
	if in == nil || r.unknown {
		return nil, nil, false
	}
	if c.Action.Type == "get" {
		return []uint64{in.ExportedGlobal(c.Action.Field).Get()}, nil, true
	}
	for _, arg := range c.Action.Args {
		w, ok := arg.stack()
		if !ok {
			return nil, nil, false
		}
		words = append(words, w...)
	}
	f := in.ExportedFunction(c.Action.Field)
	if f == nil {
		return nil, fmt.Errorf("there is no %q", c.Action.Field), true
	}
	words, err := callFunction(r.t.Context(), in, f, words...)
	return slices.Clone(words), err, true
}

func (r *runner) checkReturn(c scriptCommand) {
	words, err, ok := r.call(c)
	if !ok {
		r.Passed++
		return
	}
	if err != nil {
		r.t.Errorf("%s: %v", r.where, err)
		return
	}
	for _, want := range c.Expected {
		if _, _, _, ok := want.lanes(); !ok {
			r.Passed++
			return
		}
		if len(words) < want.words() || !want.matches(words) {
			r.t.Errorf("%s: %s returned %v, want %v", r.where, c.Action.Field, words, want)
			return
		}
		words = words[want.words():]
	}
	r.Returned++
}
