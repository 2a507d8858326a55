package approvals_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/e2e/rawmcp"
	"github.com/sluice-mesh/sluice/services/e2e/rawmesh"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

// watcher is a running `sluice approvals watch`. rows reads its standard output, and stderr reads its standard error.
type watcher struct {
	cmd          *exec.Cmd
	rows, stderr *bufio.Scanner
}

func startWatch(t *testing.T, f *rawmesh.Mesh, token string, args ...string) *watcher {
	t.Helper()
	return startWatchCommand(t, token, append([]string{"--addr", f.GRPC}, args...)...)
}

func startWatchCommand(t *testing.T, token string, args ...string) *watcher {
	t.Helper()
	program := stack.Program(t, "sluice")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // stops the wait if no row arrives
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, program, append([]string{"approvals", "watch"}, args...)...)
	cmd.Env = append(os.Environ(), "SLUICE_TOKEN="+token)
	lines := func(r io.Reader, err error) *bufio.Scanner {
		if err != nil {
			t.Fatal(err)
		}
		return bufio.NewScanner(r)
	}
	stdout, outErr := cmd.StdoutPipe()
	stderr, errErr := cmd.StderrPipe()
	w := &watcher{cmd: cmd, rows: lines(stdout, outErr), stderr: lines(stderr, errErr)}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *watcher) expectRow(t *testing.T, want ...string) {
	t.Helper()
	if !w.rows.Scan() {
		t.Fatalf("no more rows, want %q: %v", want, w.rows.Err())
	}
	for _, word := range want {
		if !strings.Contains(" "+w.rows.Text()+" ", " "+word+" ") {
			t.Errorf("%q is not in the row %q", word, w.rows.Text())
		}
	}
}

func (w *watcher) expectStderr(t *testing.T, want string) {
	t.Helper()
	if !w.stderr.Scan() || w.stderr.Text() != want {
		t.Errorf("standard error has %q, want %q: %v", w.stderr.Text(), want, w.stderr.Err())
	}
}

// interruptAndCheckEnd sends SIGINT to the watcher, as Ctrl-C does, and checks that it prints no further output.
func (w *watcher) interruptAndCheckEnd(t *testing.T) {
	t.Helper()
	if err := w.cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	for w.rows.Scan() {
		t.Errorf("one more row: %s", w.rows.Text())
	}
	for w.stderr.Scan() {
		t.Errorf("another line on standard error: %s", w.stderr.Text())
	}
	if err := w.cmd.Wait(); err != nil {
		t.Errorf("after Ctrl-C the command ended with %v", err)
	}
}

// `sluice approvals watch` shows pending approvals, new approvals and all changes to both, even after a restart of the
// mesh. It reports once that the mesh is unavailable, and once that it is available again.
func TestApprovalsCLI_WatchShowsChangesAcrossARestart(t *testing.T) {
	t.Parallel()
	up := rawmcp.Start(t, rawmcp.Tools)
	p := stack.Start(t, stack.WriteConfig(t, stack.Options{
		Servers: fmt.Sprintf("  raw: {http: {url: %q}}", up.URL), Policy: rulesPolicy, Tokens: financePeople,
		GRPC: stack.FreeAddr(t), Extra: "groups: {finance: [ana, ben]}\napprovals: {hold: 0s}",
	}))
	f := &rawmesh.Mesh{Upstream: up, Stack: p.Stack}
	c := f.Connect(t)
	c.Call("pay", `{}`)
	pay := f.AwaitOnePending(t)
	stack.CheckCommand(t, f.RunApprovals(t, anaToken, "approve", "--yes", pay), 0, "")
	c.Call("send", `{}`)
	send := f.ListApprovals(t)[0].ID

	all, mine := startWatch(t, f, anaToken), startWatch(t, f, anaToken, "--for-me")
	told := startExecWatch(t, f)
	told.expectRuns(t, map[string][]string{
		pay:  {`"state":"pending"`, `"tool":"pay"`, `"pending":1`},
		send: {`"subject":"agent"`, `"server":"raw"`, `"category":"`, `"risk":"`, `"decideBefore":"`, `"pending":2`},
	})
	for _, w := range []*watcher{all, mine} {
		w.expectRow(t, "ASKED", "STATE", "WHO", "WHAT", "MISSING", "UNTIL", "NOTE", "ID")
	}
	all.expectRow(t, "pending", "agent", "raw pay", "1", pay)
	all.expectRow(t, "pending", "raw send", send)
	mine.expectRow(t, "pending", "raw send", send)

	stack.CheckCommand(t, f.RunApprovals(t, benToken, "approve", "--yes", pay), 0, "")
	stack.CheckCommand(t, f.RunApprovals(t, benToken, "deny", send), 0, "")
	for _, w := range []*watcher{all, mine} { // both watchers show changes
		w.expectRow(t, "approved", "raw pay", pay)
		w.expectRow(t, "denied", "raw send", send)
	}

	if err := p.Stop(t); err != nil {
		t.Fatal(err)
	}
	<-time.After(3 * time.Second) // longer than the command's pause between two connection attempts
	p = stack.Start(t, p.Stack)
	f = &rawmesh.Mesh{Upstream: up, Stack: p.Stack}
	for _, w := range []*watcher{all, mine} {
		w.expectStderr(t, "sluice: the mesh does not answer; trying again until it does")
		w.expectStderr(t, "sluice: the mesh answers again")
	}
	told.expectStderr(t, "sluice: the mesh does not answer; trying again until it does")
	told.expectStderr(t, "sluice: the mesh answers again")
	f.Connect(t).Call("sync", `{}`)
	told.expectRuns(t, map[string][]string{f.AwaitOnePending(t): {`"tool":"sync"`, `"pending":1`}}) // and not again for pay, which is approved
	told.stop(t)
	for _, w := range []*watcher{all, mine} {
		w.expectRow(t, "pending", "raw sync")
		w.interruptAndCheckEnd(t)
	}
}

// The configuration lets the mesh choose a free port, so the mesh has another address after a restart. `sluice
// approvals watch` finds the new address.
func TestApprovalsCLI_WatchFindsTheNewAddressAfterARestart(t *testing.T) {
	t.Parallel()
	up := rawmcp.Start(t, rawmcp.Tools)
	p := stack.Start(t, stack.WriteConfig(t, stack.Options{
		Servers: fmt.Sprintf("  raw: {http: {url: %q}}", up.URL), Policy: rulesPolicy, Tokens: financePeople,
		Extra: "groups: {finance: [ana, ben]}\napprovals: {hold: 0s}",
	}))
	before := p.GRPC
	w := startWatchCommand(t, anaToken, "--config", p.Config)
	w.expectRow(t, "ASKED")
	if err := p.Stop(t); err != nil {
		t.Fatal(err)
	}
	w.expectStderr(t, "sluice: the mesh does not answer; trying again until it does")
	held, err := net.Listen("tcp", before) // so that the mesh gets another port
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	p = stack.Start(t, p.Stack)
	w.expectStderr(t, "sluice: the mesh answers again")
	(&rawmesh.Mesh{Upstream: up, Stack: p.Stack}).Connect(t).Call("send", `{}`)
	w.expectRow(t, "pending", "raw send")
	w.interruptAndCheckEnd(t)
	if got := acceptNow(t, held); got != "" {
		t.Errorf("the old address received %q", got)
	}
}

// acceptNow accepts the first connection that is waiting at a listener and returns what the client has sent. It returns
// "" if no connection is waiting.
func acceptNow(t *testing.T, lis net.Listener) string {
	t.Helper()
	if err := lis.(*net.TCPListener).SetDeadline(time.Now().Add(10 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	conn, err := lis.Accept()
	if err != nil {
		return ""
	}
	defer conn.Close()
	text, _ := io.ReadAll(conn) // the watch has ended, so the connection is closed
	return "a connection with " + string(text)
}
