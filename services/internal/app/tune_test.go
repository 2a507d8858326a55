package app_test

import (
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/internal/app"
	"github.com/sluice-mesh/sluice/services/internal/turn"
)

// TestTune starts this test again, with GOMAXPROCS as each case has it, and has it do long
// work.
func TestTune(t *testing.T) {
	t.Parallel()
	if os.Getenv("SLUICE_TUNED") != "" {
		app.Tune()
		// What Go works on at a time changes once there is long work.
		var work turn.Stint
		for end := time.Now().Add(200 * time.Millisecond); time.Now().Before(end); {
			work.Step()
		}
		os.Stdout.WriteString("at a time: " + strconv.Itoa(runtime.GOMAXPROCS(0)) + "\n")
		return
	}
	own := runtime.GOMAXPROCS(0)
	if own == runtime.NumCPU() { // else a container has less
		own = max(4, own)
	}
	for told, want := range map[string]int{"": own, "GOMAXPROCS=1": 1, "GOMAXPROCS=2": 2} {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^TestTune$", "-test.v")
		cmd.Env = []string{"SLUICE_TUNED=1"}
		if told != "" {
			cmd.Env = append(cmd.Env, told)
		}
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), "at a time: "+strconv.Itoa(want)+"\n") {
			t.Errorf("with %q: %v, want %d at a time:\n%s", told, err, want, out)
		}
	}
}
