//go:build unix

package stdio_test

import (
	"bufio"
	"context"
	"errors"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream/stdio"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
)

func TestProcess_EndsWithItsWholeGroup(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		role string
		end  func(*rig, session)
	}{
		"when closed, though it resists": {"stubborn", func(r *rig, _ session) { _ = r.Close() }},
		"when closed":                    {"good", func(r *rig, _ session) { _ = r.Close() }},
		"when the process dies":          {"good", func(_ *rig, s session) { _, _ = s.try(9, "die", nil) }},
		"when no session needs it": {"good", func(_ *rig, s session) {
			_ = s.conn.Close(s.t.Context())
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, c.role, func(c *stdio.Config) { c.IdleTimeout = 100 * time.Millisecond })
			s := r.open(t, ana)
			child := s.call(1, "info", nil)["pid"]
			grandchild := s.call(2, "breed", nil)["pid"]
			mustBeAlive(t, child)
			mustBeAlive(t, grandchild)
			c.end(r, s)
			for name, pid := range map[string]string{"child": child, "grandchild": grandchild} {
				eventually.Holds(t, name+" is dead", func() bool { return !isAlive(pid) })
			}
		})
	}
}

// TestClose_DoesNotWaitForProcessesOutsideTheGroup checks that the server closes even if a process that has left the
// group keeps the pipes open. If the limiter has noticed that the process was started, the limiter kills the process.
// In that case the attempt proves nothing and is repeated.
func TestClose_DoesNotWaitForProcessesOutsideTheGroup(t *testing.T) {
	t.Parallel()
	for range 20 {
		r := newRig(t, "good", nil)
		pid := r.open(t, ana).call(1, "breed", map[string]string{"escape": "yes"})["pid"]
		mustBeAlive(t, pid)
		closed := make(chan error, 1)
		go func() { closed <- r.Close() }()
		select {
		case err := <-closed:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(patience):
			t.Error("a process that holds the pipes open keeps the server from closing")
		}
		outlives := isAlive(pid)
		n, err := strconv.Atoi(pid)
		if err != nil {
			t.Fatal(err)
		}
		if err := syscall.Kill(n, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			t.Error(err)
		}
		if outlives {
			return
		}
	}
	t.Error("no process outside of the group outlived its server")
}

func TestProcess_LivesWhileASessionIsOpen(t *testing.T) {
	t.Parallel()
	r := newRig(t, "good", func(c *stdio.Config) { c.IdleTimeout, c.MaxProcesses = 50*time.Millisecond, 1 })
	one, two := r.open(t, ana), r.open(t, ana)
	pid := one.call(1, "info", nil)["pid"]
	if err := one.conn.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-time.After(200 * time.Millisecond)
	if got := two.call(1, "info", nil)["pid"]; got != pid {
		t.Errorf("the process is %s, want still %s", got, pid)
	}
	if err := two.conn.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually.Holds(t, "the process is dead", func() bool { return !isAlive(pid) })
	eventually.Holds(t, "another principal may have one", func() bool {
		_, _, err := r.Open(t.Context(), ben, hello(1))
		return err == nil
	})
}

func TestClose_EndsAllProcessesAndGoroutines(t *testing.T) {
	before := runtime.NumGoroutine()
	r := newRig(t, "good", nil)
	one, two := r.open(t, ana), r.open(t, ben)
	waiting := one.begin(1, "silence", nil)
	two.call(1, "stderr", map[string]string{"text": "x\n"})
	if _, err := two.try(2, "die", nil); err == nil {
		t.Fatal("the process did not die")
	}
	two.call(3, "info", nil)
	late, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, _ = two.conn.Request(late, toolCall(4, "silence", nil), nil)
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if got := <-waiting; errors.Is(got.err, upstream.ErrTimeout) || got.err == nil {
		t.Errorf("a request in flight ended with %v, want it to end with the server", got.err)
	}
	if _, err := one.try(2, "info", nil); !errors.Is(err, upstream.ErrNeverSent) {
		t.Errorf("a request after that ended with %v, want ErrNeverSent", err)
	}
	if _, _, err := r.Open(t.Context(), ana, hello(1)); !errors.Is(err, upstream.ErrNeverSent) {
		t.Errorf("a session after that: %v, want ErrNeverSent", err)
	}
	eventually.Holds(t, "all goroutines have ended", func() bool { return runtime.NumGoroutine() <= before })
}

func TestClose_EndsAStart(t *testing.T) {
	t.Parallel()
	r := newRig(t, "mute", nil)
	failed := make(chan error, 1)
	go func() {
		_, _, err := r.Open(t.Context(), ana, hello(1))
		failed <- err
	}()
	eventually.Holds(t, "the process runs", func() bool { return strings.Contains(r.log.String(), "process started") })
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-failed; err == nil || !strings.Contains(err.Error(), "shuts down") {
		t.Errorf("the start ended with %v, want it to say that the gateway shuts down", err)
	}
}

func TestProcess_DiesWithTheGateway(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("only Linux tells a process that its parent was killed")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	gateway := exec.Command(self)
	gateway.Env = []string{roleVariable + "=gateway"}
	out, err := gateway.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := gateway.Start(); err != nil {
		t.Fatal(err)
	}
	pid, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	pid = strings.TrimSpace(pid)
	mustBeAlive(t, pid)
	if err := gateway.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = gateway.Wait()
	eventually.Holds(t, "the server is dead", func() bool { return !isAlive(pid) })
}
