package mesh_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// report stores the result of each seed at each failpoint as one line in a file, so that an interrupted run can be
// continued. Each line contains the build to which it belongs. Results of other builds are ignored.
type report struct {
	build string

	mu     sync.Mutex
	file   *os.File // nil if nothing is stored
	passed map[string]bool
	counts map[string]int
}

// openReport opens the report file and creates it if necessary. If name is empty, nothing is stored. The summary is
// written when the test ends.
func openReport(t *testing.T, name, build string) *report {
	t.Helper()
	r := &report{build: build, passed: make(map[string]bool), counts: make(map[string]int)}
	if name == "" {
		return r
	}
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(name)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) == 5 && f[0] == build && strings.HasSuffix(line, "\n") {
			r.passed[f[1]+" "+f[2]] = f[3] == "ok"
		}
	}
	if r.file, err = os.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644); err != nil {
		t.Fatal(err)
	}
	if len(text) > 0 && text[len(text)-1] != '\n' { // the last line is incomplete
		fmt.Fprintln(r.file)
	}
	t.Cleanup(func() { r.writeSummary(t) })
	return r
}

// runSeed runs the test with one seed at a failpoint as a subtest, and stores the result. It skips a seed with which
// the test has passed before.
func (r *report) runSeed(t *testing.T, point string, seed int, run func(t *testing.T)) {
	t.Helper()
	r.mu.Lock()
	passed := r.passed[fmt.Sprintf("%s %d", point, seed)]
	r.mu.Unlock()
	if passed {
		r.count("passed before")
		return
	}
	began, ran := time.Now(), false
	ok := t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
		ran = true
		run(t)
	})
	switch {
	case !ran: // the flag -run selected another subtest
	case ok:
		r.storeResult(point, seed, "ok", time.Since(began))
	default:
		r.storeResult(point, seed, "FAILED", time.Since(began))
	}
}

func (r *report) storeResult(point string, seed int, came string, took time.Duration) {
	r.count(came)
	if r.file != nil {
		fmt.Fprintf(r.file, "%s %s %d %s %v\n", r.build, point, seed, came, took.Round(time.Millisecond))
	}
}

func (r *report) count(came string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.counts[came]++
}

// writeSummary writes the summary and closes the report.
func (r *report) writeSummary(t *testing.T) {
	t.Helper()
	text := fmt.Sprintf("%s: %d passed, %d had passed before, %d FAILED", r.build, r.counts["ok"], r.counts["passed before"], r.counts["FAILED"])
	fmt.Fprintln(r.file, "#", text)
	t.Logf("%s; every seed: %s", text, r.file.Name())
	if err := r.file.Close(); err != nil {
		t.Error(err)
	}
}
