//go:build unix

package notices

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"
)

// lines collects lines, and sends each write to a channel.
type lines struct {
	mu      sync.Mutex
	text    bytes.Buffer
	written chan string
}

func newLines() *lines { return &lines{written: make(chan string, 1000)} }

// Write implements io.Writer.
func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.written <- string(p)
	return l.text.Write(p)
}

func (l *lines) next(t *testing.T) string {
	t.Helper()
	select {
	case s := <-l.written:
		return s
	case <-time.After(time.Minute):
		t.Fatal("no output within a minute")
		return ""
	}
}

// run starts a Commands that runs a shell script. The Commands is stopped at the end of the test.
func run(t *testing.T, timeout time.Duration, script string, args ...string) (*Commands, *lines) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	out := newLines()
	c := startCommands(ctx, append([]string{"sh", "-c", script, "sh"}, args...), out, timeout)
	t.Cleanup(func() { cancel(); c.Wait() })
	return c, out
}

func TestCommands_GetTheApproval(t *testing.T) {
	t.Parallel()
	c, out := run(t, time.Minute, `read -r line; echo "$SLUICE_APPROVAL_ID,$SLUICE_APPROVALS_PENDING,$line,$*"`, "a b", "$(echo c)")
	c.Add(Job{ID: "id-1", Pending: 2, Input: []byte(`{"tool":"$(touch x)"}` + "\n")})
	if got, want := out.next(t), "id-1,2,{\"tool\":\"$(touch x)\"},a b $(echo c)\n"; got != want {
		t.Errorf("the command got %q, want %q", got, want)
	}
}

func TestCommands_FailuresAreReported(t *testing.T) {
	t.Parallel()
	c, out := run(t, time.Minute, `case $SLUICE_APPROVAL_ID in a) exit 3 ;; b) kill -TERM $$ ;; esac`)
	for id, want := range map[string]string{
		"a": "sluice: the command for approval a failed with exit code 3\n",
		"b": "sluice: the command for approval b failed: signal: terminated\n",
	} {
		c.Add(Job{ID: id})
		if got := out.next(t); got != want {
			t.Errorf("the output is %q, want %q", got, want)
		}
	}
	if _, err := StartCommands(t.Context(), []string{"/nonexistent/notify"}, out); err == nil {
		t.Error("a command that does not exist was accepted")
	}
}

// The command starts processes and waits for them. These processes hold the write end of a FIFO. The test reads from
// the FIFO until all of the processes have exited.
func TestCommands_AreKilledWithTheirProcessesAfterTheTimeout(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	fifo, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer fifo.Close()
	c, out := run(t, 300*time.Millisecond, `sh -c 'exec 3>"$0"; echo started >&3; sleep 600; true' "$1"; true`, path)
	c.Add(Job{ID: "a"})
	if got, want := out.next(t), "sluice: the command for approval a was stopped, because it did not end within 300ms\n"; got != want {
		t.Errorf("the output is %q, want %q", got, want)
	}
	if err := fifo.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(fifo); err != nil || string(text) != "started\n" {
		t.Errorf("the processes of the command wrote %q and did not end: %v", text, err)
	}
}

// Each command waits until a file exists. Four commands run, and 100 jobs wait. The next job is not added.
func TestCommands_AreBounded(t *testing.T) {
	t.Parallel()
	open := filepath.Join(t.TempDir(), "open")
	c, out := run(t, time.Minute, `echo started; until test -e "$1"; do sleep 0.02; done`, open)
	for i := range maxCommands {
		c.Add(Job{ID: fmt.Sprint(i)})
	}
	for range maxCommands {
		if got := out.next(t); got != "started\n" {
			t.Fatalf("the output is %q", got)
		}
	}
	for i := range maxQueued {
		if c.Full() || !c.Add(Job{ID: fmt.Sprint("queued-", i)}) {
			t.Errorf("job %d was not added", i)
		}
	}
	if !c.Full() || c.Add(Job{ID: "late"}) {
		t.Error("a job was added although 100 wait")
	}
	if err := os.WriteFile(open, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for range maxQueued {
		if got := out.next(t); got != "started\n" {
			t.Fatalf("the output is %q", got)
		}
	}
}
