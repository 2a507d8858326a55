package hostile_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http/httptest"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/sluice-mesh/sluice/services/internal/e2e/stack"
)

// asAttackers makes the test's binary the process of the attackers. They are a process
// of their own, of the lowest priority, so that what a well-behaved caller suffers is the
// mesh's doing and not the machine's.
const asAttackers = "SLUICE_TEST_AS_ATTACKERS"

func TestMain(m *testing.M) {
	if os.Getenv(asAttackers) == "" {
		os.Exit(stack.Main(m))
	}
	if err := serveAttacks(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "attackers:", err)
		os.Exit(1)
	}
}

// serveAttacks serves the hostile servers, whose URLs it prints first, reads the target,
// and then a line for each change between attacking and resting. At the end it prints
// how often each attack was done.
func serveAttacks(in io.Reader, out io.Writer) error {
	urls := make(map[string]string)
	for name, handler := range servers() {
		server := httptest.NewServer(handler)
		urls[name] = server.URL + "/mcp"
	}
	say, lines := json.NewEncoder(out), bufio.NewScanner(in)
	if err := say.Encode(urls); err != nil {
		return err
	}
	var m target
	if !lines.Scan() {
		return lines.Err()
	}
	if err := json.Unmarshal(lines.Bytes(), &m); err != nil {
		return err
	}
	done := make(map[string]*atomic.Int64)
	for _, a := range attacks() {
		done[a.name] = new(atomic.Int64)
	}
	stop := func() {}
	for lines.Scan() {
		stop()
		if stop = func() {}; lines.Text() == "attack" {
			stop = begin(m, done)
		}
		if err := say.Encode(lines.Text()); err != nil {
			return err
		}
	}
	stop()
	counts := make(map[string]int64)
	for name, n := range done {
		counts[name] = n.Load()
	}
	return say.Encode(counts)
}

// begin attacks until stop is called, which waits for the end of all attacks.
func begin(m target, done map[string]*atomic.Int64) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var working sync.WaitGroup
	for _, a := range attacks() {
		for range a.workers {
			working.Go(func() {
				for ctx.Err() == nil {
					a.do(ctx, m)
					done[a.name].Add(1)
				}
			})
		}
	}
	return func() {
		cancel()
		working.Wait()
	}
}

// attackers is that process, as the test sees it.
type attackers struct {
	t    *testing.T
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Scanner
	urls map[string]string
}

func startAttackers(t *testing.T) *attackers {
	t.Helper()
	a := &attackers{t: t, cmd: exec.Command("nice", "-n", "19", os.Args[0])}
	a.cmd.Env, a.cmd.Stderr = append(os.Environ(), asAttackers+"=1"), os.Stderr
	in, err := a.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := a.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	a.in, a.out = in, bufio.NewScanner(out)
	if err := a.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = a.cmd.Process.Kill() })
	a.hear(&a.urls)
	return a
}

// tell sends a line.
func (a *attackers) tell(line string) {
	a.t.Helper()
	if _, err := fmt.Fprintln(a.in, line); err != nil {
		a.t.Fatalf("tell the attackers %s: %v", line, err)
	}
}

// hear reads a line into what.
func (a *attackers) hear(what any) {
	a.t.Helper()
	if !a.out.Scan() {
		a.t.Fatalf("the attackers ended: %v", a.out.Err())
	}
	if err := json.Unmarshal(a.out.Bytes(), what); err != nil {
		a.t.Fatalf("the attackers said %s: %v", a.out.Text(), err)
	}
}

// turn makes them attack or rest, and returns when they do.
func (a *attackers) turn(what string) {
	a.t.Helper()
	a.tell(what)
	var said string
	a.hear(&said)
}

// end ends them and returns how often each attack was done.
func (a *attackers) end() (counts map[string]int64) {
	a.t.Helper()
	_ = a.in.Close()
	a.hear(&counts)
	_ = a.cmd.Wait()
	return counts
}
