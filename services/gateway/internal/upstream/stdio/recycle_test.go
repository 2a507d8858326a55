//go:build unix

package stdio_test

import (
	"strings"
	"sync"
	"testing"

	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream/stdio"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
)

func recycling(t *testing.T, calls int) *rig {
	t.Helper()
	return newRig(t, "good", func(c *stdio.Config) { c.Recycle = calls })
}

func TestRecycle_ReplacesAProcessAfterItsCalls(t *testing.T) {
	t.Parallel()
	r := recycling(t, 3)
	one, two := r.open(t, ana), r.open(t, ana)
	one.call(1, "save", map[string]string{"text": "remember me"})
	before := two.call(1, "info", nil)
	if third := one.call(2, "info", nil)["pid"]; third != before["pid"] {
		t.Errorf("process %s serves the third call, want %s", third, before["pid"])
	}
	eventually.Holds(t, "the process has ended", func() bool { return !isAlive(before["pid"]) })
	if n := strings.Count(r.log.String(), "server process started"); n != 1 {
		t.Errorf("%d processes were started before the next call, want 1", n)
	}
	after := one.call(3, "info", nil)
	if after["pid"] == before["pid"] || after["inits"] != "1" || after["ready"] != "1" {
		t.Errorf("process %s, initialized %s times, comes after %s", after["pid"], after["inits"], before["pid"])
	}
	if after["dir"] != before["dir"] || after["note"] != "remember me" {
		t.Errorf("the new process works in %s and found %q, the old one worked in %s", after["dir"], after["note"], before["dir"])
	}
	if got := two.call(2, "info", nil)["pid"]; got != after["pid"] {
		t.Errorf("the other session's process is %s, want %s", got, after["pid"])
	}
	if logged := r.log.String(); strings.Contains(logged, "WARN") || !strings.Contains(logged, "the configured number of calls") {
		t.Error("the log calls it a failure, or has no entry")
	}
}

func TestRecycle_WaitsForCallsInFlight(t *testing.T) {
	t.Parallel()
	r := recycling(t, 2)
	one, two := r.open(t, ana), r.open(t, ana)
	held := one.begin(1, "hold", map[string]string{"key": "first"})
	var pid string
	eventually.Holds(t, "the call is held", func() bool {
		got := two.call(1, "info", nil)
		pid = got["pid"]
		return got["held"] == "first"
	})
	for range 5 {
		if got := two.call(2, "info", nil)["pid"]; got != pid {
			t.Fatalf("process %s replaced %s, which has a call", got, pid)
		}
	}
	two.call(3, "hold", map[string]string{"key": "now"})
	if got := <-held; got.err != nil || resultOf(got.Answer)["key"] != "first" {
		t.Errorf("the call that was held ended with %v, %v", got.Answer, got.err)
	}
	if got := two.call(4, "info", nil)["pid"]; got == pid {
		t.Error("the process continues without a call")
	}
}

// Processes are replaced many times. No call is lost. Unlike crashes, the replacements do not delay later starts.
func TestRecycle_LosesNoCall(t *testing.T) {
	t.Parallel()
	r := recycling(t, 1)
	alone := r.open(t, ana)
	for id := range 6 { // more starts than a failing server may have in this time
		alone.call(id, "info", nil)
	}
	if n := strings.Count(r.log.String(), "server process started"); n != 6 {
		t.Errorf("%d processes served 6 calls, want as many", n)
	}
	var wg sync.WaitGroup
	for range 4 {
		s := r.open(t, ana)
		wg.Go(func() {
			for id := range 10 {
				if _, err := s.try(id, "info", nil); err != nil {
					t.Errorf("a call was lost: %v", err)
				}
			}
		})
	}
	wg.Wait()
}
