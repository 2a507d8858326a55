package e2e_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/e2e/rawmcp"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

// watcher is a running `sluice approvals watch`. out reads its standard output, and said its standard error.
type watcher struct {
	cmd       *exec.Cmd
	out, said *bufio.Scanner
}

func (f *fixture) watch(t *testing.T, token string, args ...string) *watcher {
	t.Helper()
	program := stack.Program(t, "sluice")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // stops the wait for a row that never comes
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, program, append([]string{"approvals", "watch", "--addr", f.GRPC}, args...)...)
	cmd.Env = append(os.Environ(), "SLUICE_TOKEN="+token)
	lines := func(r io.Reader, err error) *bufio.Scanner {
		if err != nil {
			t.Fatal(err)
		}
		return bufio.NewScanner(r)
	}
	stdout, outErr := cmd.StdoutPipe()
	stderr, errErr := cmd.StderrPipe()
	w := &watcher{cmd: cmd, out: lines(stdout, outErr), said: lines(stderr, errErr)}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return w
}

// next checks that the next row contains these words.
func (w *watcher) next(t *testing.T, want ...string) {
	t.Helper()
	if !w.out.Scan() {
		t.Fatalf("no more rows, want %q: %v", want, w.out.Err())
	}
	for _, word := range want {
		if !strings.Contains(" "+w.out.Text()+" ", " "+word+" ") {
			t.Errorf("%q is not in the row %q", word, w.out.Text())
		}
	}
}

// says checks the next line on standard error.
func (w *watcher) says(t *testing.T, want string) {
	t.Helper()
	if !w.said.Scan() || w.said.Text() != want {
		t.Errorf("standard error has %q, want %q: %v", w.said.Text(), want, w.said.Err())
	}
}

// ends stops the watcher as Ctrl-C does, and checks that it prints nothing more.
func (w *watcher) ends(t *testing.T) {
	t.Helper()
	if err := w.cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	for w.out.Scan() {
		t.Errorf("one more row: %s", w.out.Text())
	}
	for w.said.Scan() {
		t.Errorf("another line on standard error: %s", w.said.Text())
	}
	if err := w.cmd.Wait(); err != nil {
		t.Errorf("after Ctrl-C the command ended with %v", err)
	}
}

// Checks that `sluice approvals watch` shows pending approvals, new ones and their changes, also across a restart of
// the mesh. The command reports once that the mesh is unavailable, and once that it is available again.
func TestApprovalsAreWatched(t *testing.T) {
	t.Parallel()
	up := rawmcp.Start(t, tools)
	p := stack.Start(t, stack.Write(t, stack.Options{
		Servers: fmt.Sprintf("  raw: {http: {url: %q}}", up.URL), Policy: rulesPolicy, Tokens: financePeople,
		GRPC: stack.FreeAddr(t), Extra: "groups: {finance: [ana, ben]}\napprovals: {hold: 0s}",
	}))
	f := &fixture{up: up, Stack: p.Stack}
	c := f.connect(t)
	c.Call("pay", `{}`)
	pay := f.pendingOne(t)
	holds(t, f.words(t, anaToken, "approve", pay), 0, "")
	c.Call("send", `{}`)
	send := f.waiting(t)[0].ID

	all, mine := f.watch(t, anaToken), f.watch(t, anaToken, "--for-me")
	for _, w := range []*watcher{all, mine} {
		w.next(t, "ASKED", "STATE", "WHO", "WHAT", "MISSING", "UNTIL", "NOTE", "ID")
	}
	all.next(t, "pending", "agent", "raw pay", "1", pay)
	all.next(t, "pending", "raw send", send)
	mine.next(t, "pending", "raw send", send)

	holds(t, f.words(t, benToken, "approve", pay), 0, "")
	holds(t, f.words(t, benToken, "deny", send), 0, "")
	for _, w := range []*watcher{all, mine} { // both watchers show changes
		w.next(t, "approved", "raw pay", pay)
		w.next(t, "denied", "raw send", send)
	}

	if err := p.Stop(t); err != nil {
		t.Fatal(err)
	}
	<-time.After(3 * time.Second) // longer than the pause of the command between two attempts
	p = stack.Start(t, p.Stack)
	f = &fixture{up: up, Stack: p.Stack}
	for _, w := range []*watcher{all, mine} {
		w.says(t, "sluice: the mesh does not answer; trying again until it does")
		w.says(t, "sluice: the mesh answers again")
	}
	f.connect(t).Call("sync", `{}`)
	for _, w := range []*watcher{all, mine} {
		w.next(t, "pending", "raw sync")
		w.ends(t)
	}
}
