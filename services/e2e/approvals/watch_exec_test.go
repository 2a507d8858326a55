package approvals_test

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/sluice-mesh/sluice/services/e2e/rawmesh"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

// execWatcher is a running `sluice approvals watch --exec`. The executed command writes its standard input to a file in
// the directory dir. The file's name contains the command's variables and arguments. The command then fails with exit
// code 3, so that the watch reports that the command has ended.
type execWatcher struct {
	*watcher
	dir string
}

func startExecWatch(t *testing.T, f *rawmesh.Mesh) *execWatcher {
	t.Helper()
	dir := t.TempDir()
	w := startWatch(t, f, stack.OperatorToken, "-o", "json", "--exec", "sh", "-c", `cat >"$1/$SLUICE_APPROVAL_ID,$2"; exit 3`, "sh", dir, "--for-me")
	return &execWatcher{w, dir}
}

// expectRuns waits until the command was run once for each approval in the map runs, in any order. It checks that the
// command's standard input contains the strings in the map.
func (w *execWatcher) expectRuns(t *testing.T, runs map[string][]string) {
	t.Helper()
	reports := make(map[string]bool)
	for range runs {
		if !w.stderr.Scan() {
			t.Fatalf("no more lines on standard error: %v", w.stderr.Err())
		}
		reports[w.stderr.Text()] = true
	}
	for id, want := range runs {
		if !reports["sluice: the command for approval "+id+" failed with exit code 3"] {
			t.Errorf("no report about %s: %v", id, reports)
		}
		input := stack.ReadFile(t, filepath.Join(w.dir, id+",--for-me"))
		for _, part := range want {
			if !strings.Contains(input, part) {
				t.Errorf("%q is not in the input %q", part, input)
			}
		}
	}
}

// stop interrupts the watcher. It reads the remaining rows, and checks that the command was not run again.
func (w *execWatcher) stop(t *testing.T) {
	t.Helper()
	if err := w.cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	rows := 0
	for w.rows.Scan() {
		rows++
	}
	for w.stderr.Scan() {
		t.Errorf("another line on standard error: %s", w.stderr.Text())
	}
	if err := w.cmd.Wait(); err != nil || rows < 5 { // pay and send: pending, then approved and denied; sync: pending
		t.Errorf("%d rows, and the command ended with %v", rows, err)
	}
}
