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
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

// attackersVariable is the name of the environment variable that makes the test binary run the attackers and their
// servers. Real attackers have their own machines. In this test, the attackers' process gets only the processor time
// that the mesh, the well-behaved agent and its server do not use (SCHED_IDLE, set by chrt). Therefore only the work of
// the mesh can slow down the agent.
const attackersVariable = "SLUICE_TEST_AS_ATTACKERS"

// priorityVariable is the name of the environment variable that marks a process that already has priority: the process
// of the well-behaved agent and its server. Real agents also have their own machines. If the system allows it, this
// process has priority over all others (SCHED_RR).
const priorityVariable = "SLUICE_TEST_COMES_FIRST"

func TestMain(m *testing.M) {
	if os.Getenv(attackersVariable) == "" {
		runWithPriority()
		os.Exit(stack.Main(m))
	}
	if err := serveAttacks(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "attackers:", err)
		os.Exit(1)
	}
}

// runWithPriority executes this program again with priority over all other processes. It returns if the process already
// has the priority or cannot get it.
func runWithPriority() {
	under := []string{"chrt", "--rr", "1"}
	chrt, err := exec.LookPath(under[0])
	if os.Getenv(priorityVariable) != "" || err != nil || exec.Command(under[0], append(under[1:], "true")...).Run() != nil {
		return
	}
	_ = syscall.Exec(chrt, append(under, os.Args...), append(os.Environ(), priorityVariable+"=1")) // if Exec fails, this process continues without priority
}

// serveAttacks starts the hostile servers, prints their URLs, and reads the target. Then it reads commands to attack or
// to rest. It answers each command with the number of times that each attack has been made so far.
func serveAttacks(in io.Reader, out io.Writer) error {
	signal.Ignore(os.Interrupt) // this process ends when its input ends
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
	all := selectedAttacks()
	done := make([]atomic.Int64, len(all))
	stop := func() {}
	for lines.Scan() {
		stop()
		if stop = func() {}; lines.Text() == commandAttack {
			stop = startAttacks(m, all, done)
		}
		counts := make(map[string]int64)
		for i, a := range all {
			counts[a.name] = done[i].Load()
		}
		if err := say.Encode(counts); err != nil {
			return err
		}
	}
	stop()
	return nil
}

// startAttacks makes the attacks repeatedly until the returned function stop is called. That function returns after all
// attacks have ended.
func startAttacks(m target, all []attack, done []atomic.Int64) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var working sync.WaitGroup
	for i, a := range all {
		for range a.workers {
			working.Go(func() {
				for ctx.Err() == nil {
					if a.do(ctx, m) {
						done[i].Add(1)
					} else {
						sleep(ctx, 10*time.Millisecond)
					}
				}
			})
		}
	}
	return func() {
		cancel()
		working.Wait()
	}
}

// attackers is the attackers' process, which the test controls.
type attackers struct {
	t    *testing.T
	in   io.WriteCloser
	out  *bufio.Scanner
	urls map[string]string
}

func startAttackers(t *testing.T) *attackers {
	t.Helper()
	cmd := exec.Command("chrt", "--idle", "0", os.Args[0])
	cmd.Env, cmd.Stderr = append(os.Environ(), attackersVariable+"=1"), os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGKILL) // the exit status of the attackers does not matter
		_ = cmd.Wait()
	})
	a := &attackers{t: t, in: in, out: bufio.NewScanner(out)}
	a.receive(&a.urls)
	return a
}

func (a *attackers) sendTarget(at target) {
	a.t.Helper()
	raw, err := json.Marshal(at)
	if err != nil {
		a.t.Fatal(err)
	}
	a.send(string(raw))
}

// commandAttack and commandRest are the commands that the test sends to the attackers.
const (
	commandAttack = "attack"
	commandRest   = "rest"
)

// switchTo makes the attackers attack or rest. It returns the number of times that each attack has been made so far.
func (a *attackers) switchTo(what string) (counts map[string]int64) {
	a.t.Helper()
	a.send(what)
	a.receive(&counts)
	return counts
}

func (a *attackers) send(line string) {
	a.t.Helper()
	if _, err := fmt.Fprintln(a.in, line); err != nil {
		a.t.Fatalf("tell the attackers %s: %v", line, err)
	}
}

// receive reads a line of JSON from the attackers and unmarshals it into the parameter what.
func (a *attackers) receive(what any) {
	a.t.Helper()
	if !a.out.Scan() {
		a.t.Fatalf("the attackers ended: %v", a.out.Err())
	}
	if err := json.Unmarshal(a.out.Bytes(), what); err != nil {
		a.t.Fatalf("the attackers said %s: %v", a.out.Text(), err)
	}
}
