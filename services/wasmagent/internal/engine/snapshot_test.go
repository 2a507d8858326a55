package engine_test

import (
	"bytes"
	"compress/flate"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/wasmagent/internal/engine"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/guesttest"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/wasmmeter"
)

// continueEnv is the name of an environment variable. If the variable is set, this test program continues a guest. The
// value of the variable is the directory that contains the guest's module, snapshot and next envelope.
const continueEnv = "SLUICE_TEST_ELSEWHERE"

// A guest is restored from a snapshot in this process and in another process. In both processes, it returns the same
// answer and uses the same fuel.
func TestRestore_ContinuesInAnotherProcess(t *testing.T) {
	t.Parallel()
	if dir := os.Getenv(continueEnv); dir != "" {
		continueGuest(t, dir)
		return
	}
	text := guesttest.Module(t, guesttest.Guests+"script")
	p := compileModule(t, text)
	in := startInstance(t, p)
	step(t, in, turnEnvelopes[0])
	for i, e := range turnEnvelopes[1:] {
		snapshot, err := in.Snapshot()
		if err != nil {
			t.Fatal(err)
		}
		want, fuel := step(t, in, e)
		restored, err := p.Restore(t.Context(), limits, snapshot)
		if err != nil {
			t.Fatal(err)
		}
		got, used := step(t, restored, e)
		if err := restored.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if !reflect.DeepEqual(got, want) || used != fuel {
			t.Errorf("step %d answers %v for %d, restored %v for %d", i, want, fuel, got, used)
		}
		if i != 3 {
			continue
		}
		dir := t.TempDir()
		for name, text := range map[string][]byte{"module": text, "snapshot": snapshot, "envelope": e.text()} {
			if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^TestRestore_ContinuesInAnotherProcess$", "-test.v")
		cmd.Env = append(os.Environ(), continueEnv+"="+dir)
		out, err := cmd.CombinedOutput()
		if answer := fmt.Sprintf("answers %v for %d\n", want, fuel); err != nil || !strings.Contains(string(out), answer) {
			t.Errorf("%v: want %s in:\n%s", err, answer, out)
		}
	}
}

func continueGuest(t *testing.T, dir string) {
	read := func(name string) []byte {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	in, err := compileModule(t, read("module")).Restore(t.Context(), limits, read("snapshot"))
	if err != nil {
		t.Fatal(err)
	}
	text, fuel, err := in.Step(t.Context(), read("envelope"), plentyFuel)
	if err != nil {
		t.Fatal(err)
	}
	var out envelope
	if err := json.Unmarshal(text, &out); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(os.Stdout, "answers %v for %d\n", out, fuel)
}

func TestRestore_RefusesDamagedSnapshots(t *testing.T) {
	t.Parallel()
	p := compileModule(t, guesttest.HandMade{}.Module())
	in := startInstance(t, p)
	content, err := in.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range [][]byte{content, withMemory(content, make([]byte, 8))} {
		if _, err := p.Restore(t.Context(), limits, text); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range map[string][]byte{
		"nothing":                nil,
		"only the header":        content[:60],
		"truncated":              content[:len(content)-1],
		"fewer blocks":           withMemory(content, make([]byte, 7)),
		"a block too few":        withMemory(content, []byte{1, 0, 0, 0, 0, 0, 0, 0}),
		"a block too many":       withMemory(content, make([]byte, 8+1<<10)),
		"trailing byte":          append(bytes.Clone(content), 0),
		"another module":         bytes.Replace(content, []byte(`"module":"`), []byte(`"module":"f`), 1),
		"another meter version":  bytes.Replace(content, fmt.Appendf(nil, `"meter":%d`, wasmmeter.MeterVersion), []byte(`"meter":99`), 1),
		"another format version": bytes.Replace(content, []byte(`"version":2`), []byte(`"version":1`), 1),
		"more memory":            bytes.Replace(content, []byte(`"pages":1`), []byte(`"pages":2`), 1),
		"no memory":              bytes.Replace(content, []byte(`"pages":1`), []byte(`"pages":0`), 1),
		"random not base64":      bytes.Replace(content, []byte(`"random":"`), []byte(`"random":"A`), 1),
	} {
		if _, err := p.Restore(t.Context(), limits, text); !errors.Is(err, engine.ErrSnapshot) {
			t.Errorf("restoring %s returns %v, want %v", name, err, engine.ErrSnapshot)
		}
	}
	if _, err := p.Restore(t.Context(), engine.Limits{Memory: 1000}, content); !errors.Is(err, engine.ErrMemory) {
		t.Errorf("restoring with too little memory returns %v", err)
	}
}

// withMemory returns a copy of a snapshot in which the memory is replaced with the given memory. The header stays the
// same.
func withMemory(snapshot, memory []byte) []byte {
	out := bytes.NewBuffer(bytes.Clone(snapshot[:4+binary.LittleEndian.Uint32(snapshot)]))
	pack, err := flate.NewWriter(out, flate.BestSpeed)
	if err == nil {
		_, err = pack.Write(memory)
	}
	if err = errors.Join(err, pack.Close()); err != nil {
		panic(err)
	}
	return out.Bytes()
}

// A snapshot contains all changes to a guest's memory, whether they are within the module's data or beyond the initial
// memory.
func TestSnapshot_HasWholeMemory(t *testing.T) {
	t.Parallel()
	const at = 30_000
	address := guesttest.I32(at)
	written := append(append([]byte{1, 0}, address...), 0x0b, 0x80, 0x20) // 4096 bytes
	p := compileModule(t, guesttest.HandMade{
		Alloc: guesttest.Concat(guesttest.I32(1), guesttest.Code{0x40, 0, 0x1a}, address), // memory.grow
		Step:  guesttest.Answer(0, 2<<16),
		Data:  append(written, bytes.Repeat([]byte{7}, 4096)...),
	}.Module())
	in := startInstance(t, p)
	random := rand.New(rand.NewPCG(1, 2))
	give := func(in *engine.Instance, text []byte) []byte {
		memory, _, err := in.Step(t.Context(), text, plentyFuel)
		if err != nil {
			t.Fatal(err)
		}
		return memory
	}
	if got := give(in, nil); !bytes.Equal(got[at:at+4096], bytes.Repeat([]byte{7}, 4096)) {
		t.Fatal("the guest's memory does not have the module's data")
	}
	for range 50 {
		text := make([]byte, random.IntN(60_000))
		for i := 0; i < len(text); i += 1 + random.IntN(3000) {
			text[i] = byte(random.IntN(3) * 7)
		}
		give(in, text)
		snapshot, err := in.Snapshot()
		if err != nil {
			t.Fatal(err)
		}
		restored, err := p.Restore(t.Context(), limits, snapshot)
		if err != nil {
			t.Fatal(err)
		}
		if repeated, err := restored.Snapshot(); err != nil || !bytes.Equal(repeated, snapshot) {
			t.Fatalf("a snapshot of the restored guest differs: %v", err)
		}
		if restored.Memory() != in.Memory() || !bytes.Equal(give(restored, nil), give(in, nil)) {
			t.Fatal("the memory of the restored guest differs")
		}
		if err := restored.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// The snapshot of a guest that is written in Go does not grow with the number of prompts, because the guest's garbage
// is collected.
func TestSnapshot_StaysSmallOverManyPrompts(t *testing.T) {
	t.Parallel()
	in := startInstance(t, compileModule(t, guesttest.Module(t, guesttest.Guests+"script")))
	step(t, in, turnEnvelopes[0])
	for i := range 5000 {
		step(t, in, envelope{"kind": "prompt", "input": "say x"})
		if i%1000 != 999 {
			continue
		}
		snapshot, err := in.Snapshot()
		if err != nil {
			t.Fatal(err)
		}
		if len(snapshot) > 160<<10 {
			t.Fatalf("after %d prompts a snapshot has %d KiB", i+1, len(snapshot)>>10)
		}
	}
}

// Case W13. If a guest reuses the memory of another guest that has ended, all bytes of the memory are zero.
func TestStart_MemoryIsZeroAfterOtherGuest(t *testing.T) {
	t.Parallel()
	p := compileModule(t, guesttest.HandMade{
		Alloc: guesttest.Concat(guesttest.I32(2), guesttest.Code{0x40, 0, 0x1a}, guesttest.I32(100)),
		Step:  guesttest.Answer(0, 3<<16),
	}.Module())
	for i := range 20 {
		in, _, err := p.Start(t.Context(), limits, engine.Origin{}, plentyFuel)
		if err != nil {
			t.Fatal(err)
		}
		memory, _, err := in.Step(t.Context(), nil, plentyFuel)
		if err != nil {
			t.Fatal(err)
		}
		if i := bytes.IndexFunc(memory, func(r rune) bool { return r != 0 }); i >= 0 || in.Memory() != 3<<16 {
			t.Fatalf("of %d bytes of memory, byte %d is not zero", in.Memory(), i)
		}
		if memory, _, err = in.Step(t.Context(), bytes.Repeat([]byte{7}, 150_000+i), plentyFuel); err != nil || memory[150_000] != 7 {
			t.Fatalf("the guest can't write: %v", err)
		}
		if err := in.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// BenchmarkSnapshot measures the time for taking and for restoring a snapshot of a guest that is written in Go.
func BenchmarkSnapshot(b *testing.B) {
	p := compileModule(b, guesttest.Module(b, guesttest.Guests+"agent"))
	in := startInstance(b, p)
	step(b, in, turnEnvelopes[0])
	snapshot, err := in.Snapshot()
	if err != nil {
		b.Fatal(err)
	}
	b.Run("keep", func(b *testing.B) {
		for b.Loop() {
			if _, err := in.Snapshot(); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(len(snapshot)), "bytes")
	})
	b.Run("restore", func(b *testing.B) {
		for b.Loop() {
			in, err := p.Restore(b.Context(), limits, snapshot)
			if err != nil {
				b.Fatal(err)
			}
			if err := in.Close(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
	})
}
