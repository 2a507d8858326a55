package engine_test

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/sluice-mesh/sluice/services/wasmagent/internal/engine"
)

const (
	// plenty is more fuel than any step here takes that ends.
	plenty = 2_000_000_000
	mib    = 1 << 20
)

var limits = engine.Limits{Memory: 64 * mib, Envelope: 1 * mib}

// guests are the shipped guests, each built once.
var guests sync.Map

func built(t testing.TB, name string) []byte {
	t.Helper()
	//nolint:usetesting // it outlives the test that is the first to want it
	build, _ := guests.LoadOrStore(name, sync.OnceValues(func() ([]byte, error) {
		dir, err := os.MkdirTemp("", "guest")
		if err != nil {
			return nil, err
		}
		defer os.RemoveAll(dir)
		path := filepath.Join(dir, name+".wasm")
		cmd := exec.Command("go", "build", "-buildmode=c-shared", "-trimpath", "-o", path, "github.com/sluice-mesh/sluice/sdk/guests/"+name)
		cmd.Env = append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm", "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("%w: %s", err, out)
		}
		return os.ReadFile(path)
	}))
	text, err := build.(func() ([]byte, error))()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func newEngine(t testing.TB) *engine.Engine {
	t.Helper()
	e, err := engine.New(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	return e
}

func compiled(t testing.TB, text []byte) *engine.Program {
	t.Helper()
	p, err := newEngine(t).Compile(t.Context(), text)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func started(t testing.TB, p *engine.Program) *engine.Instance {
	t.Helper()
	in, _, err := p.Start(t.Context(), limits, engine.Origin{Clock: 1_700_000_000_000_000_000}, plenty)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = in.Close(context.WithoutCancel(t.Context())) })
	return in
}

// An envelope is what goes in or comes out.
type envelope map[string]any

func (e envelope) text() []byte {
	text, err := json.Marshal(e)
	if err != nil {
		panic(err)
	}
	return text
}

// step gives an instance an envelope, and returns what comes back and the fuel.
func step(t testing.TB, in *engine.Instance, e envelope) (envelope, int64) {
	t.Helper()
	text, fuel, err := in.Step(t.Context(), e.text(), plenty)
	if err != nil {
		t.Fatalf("%v: %v\n%s", e, err, in.Log())
	}
	var out envelope
	if err := json.Unmarshal(text, &out); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return out, fuel
}

// code is a function's body: its locals are none.
type code []byte

// Some instructions.
func i32(n int32) code { return append(code{0x41}, sleb(int64(n))...) }
func i64(n int64) code { return append(code{0x42}, sleb(n)...) }

func sleb(v int64) (b []byte) {
	for {
		c := byte(v & 0x7f)
		v >>= 7
		if v == 0 && c&0x40 == 0 || v == -1 && c&0x40 != 0 {
			return append(b, c)
		}
		b = append(b, c|0x80)
	}
}

func cat(parts ...code) (out code) {
	for _, p := range parts {
		out = append(out, p...)
	}
	return out
}

// answer is the end of a step that returns so many bytes at a place.
func answer(place, bytes uint32) code { return i64(int64(place)<<32 | int64(bytes)) }

// A hand-made guest: what alloc and step do, the sections that are others, and functions
// beside those three.
type handMade struct {
	alloc, step code
	memory      []byte
	imports     []byte
	more        []code
}

// module writes it. Its functions are abi_version, alloc, step and those beside, behind
// what it imports: type 0 is () -> i32, 1 (i32) -> i32, 2 (i32, i32) -> i64, 3 (i32, i32,
// i32, i32) -> i32.
func (h handMade) module() []byte {
	if h.alloc == nil {
		h.alloc = i32(1024)
	}
	if h.step == nil {
		h.step = answer(1024, 2)
	}
	if h.memory == nil {
		h.memory = []byte{1, 0, 1}
	}
	uleb := func(n int) []byte { return binary.AppendUvarint(nil, uint64(n)) }
	imported := 0
	if h.imports != nil {
		imported = int(h.imports[0])
	}
	out := []byte{0, 'a', 's', 'm', 1, 0, 0, 0}
	section := func(id byte, text []byte) { out = append(append(append(out, id), uleb(len(text))...), text...) }
	section(1, []byte{4, 0x60, 0, 1, 0x7f, 0x60, 1, 0x7f, 1, 0x7f, 0x60, 2, 0x7f, 0x7f, 1, 0x7e, 0x60, 4, 0x7f, 0x7f, 0x7f, 0x7f, 1, 0x7f})
	if h.imports != nil {
		section(2, h.imports)
	}
	functions := append(uleb(3+len(h.more)), 0, 1, 2)
	for range h.more {
		functions = append(functions, 1)
	}
	section(3, functions)
	section(5, h.memory)
	exports := []byte{4}
	for i, name := range []string{"abi_version", "alloc", "step"} {
		exports = append(append(append(exports, byte(len(name))), name...), 0, byte(imported+i))
	}
	section(7, append(append(exports, 6), "memory\x02\x00"...))
	bodies := uleb(3 + len(h.more))
	for _, c := range append([]code{i32(1), h.alloc, h.step}, h.more...) {
		bodies = append(append(append(bodies, uleb(len(c)+2)...), 0), append(c, 0x0b)...)
	}
	section(10, bodies)
	return out
}
