package app_test

import (
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/internal/app"
	"github.com/sluice-mesh/sluice/services/internal/gosched"
)

// TestTune runs the test binary with the GOMAXPROCS of each case, and checks the value of GOMAXPROCS during long
// computations.
func TestTune(t *testing.T) {
	t.Parallel()
	if os.Getenv("SLUICE_TUNED") != "" {
		app.Tune()
		// GOMAXPROCS changes only during long computations.
		var work gosched.Work
		for end := time.Now().Add(200 * time.Millisecond); time.Now().Before(end); {
			work.Step()
		}
		os.Stdout.WriteString("at a time: " + strconv.Itoa(runtime.GOMAXPROCS(0)) + "\n")
		return
	}
	own := runtime.GOMAXPROCS(0)
	if own == runtime.NumCPU() { // otherwise a container limits the processors
		own = max(4, own)
	}
	for setting, want := range map[string]int{"": own, "GOMAXPROCS=1": 1, "GOMAXPROCS=2": 2} {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^"+t.Name()+"$", "-test.v")
		cmd.Env = []string{"SLUICE_TUNED=1"}
		if setting != "" {
			cmd.Env = append(cmd.Env, setting)
		}
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), "at a time: "+strconv.Itoa(want)+"\n") {
			t.Errorf("with %q: %v, want %d at a time:\n%s", setting, err, want, out)
		}
	}
}

// The test runs the test binary again, which allocates 24 MiB of garbage. The small heap must not be collected, unless
// the operator has configured the garbage collector that way.
func TestTune_CollectsSmallHeapLessOften(t *testing.T) {
	t.Parallel()
	if os.Getenv("SLUICE_TUNED") != "" {
		app.Tune()
		runtime.GC() // end the collection that the spare heap has started
		var was, is runtime.MemStats
		runtime.ReadMemStats(&was)
		for range 24 << 10 {
			garbage = make([]byte, 1<<10)
		}
		runtime.ReadMemStats(&is)
		os.Stdout.WriteString("collected: " + strconv.FormatBool(is.NumGC > was.NumGC) + "\nlimit: " + strconv.FormatInt(debug.SetMemoryLimit(-1), 10) + "\n")
		return
	}
	for setting, want := range map[string]string{
		"": "collected: false\n", "GOGC=100": "collected: true\n", "GOMEMLIMIT=300MiB": "limit: 314572800\n", "GOMEMLIMIT=off": "collected: false\n",
	} {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^"+t.Name()+"$", "-test.v")
		cmd.Env = []string{"SLUICE_TUNED=1", setting}
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), want) {
			t.Errorf("with %q: %v, want %q:\n%s", setting, err, want, out)
		}
	}
}

// garbage holds the last allocation, so that the compiler can't remove the allocations.
var garbage []byte
