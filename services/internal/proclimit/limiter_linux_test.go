package proclimit_test

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/sluice-mesh/sluice/services/internal/eventually"
	"github.com/sluice-mesh/sluice/services/internal/proclimit"
)

// hiddenAttack is an attack that a periodic count of processes does not detect: between two counts, a process leaves
// its session and its parents.
const hiddenAttack = "double forks in sessions of their own"

// attacks contains shell programs that exceed a limit. They end by themselves if the limiter does not kill them. The
// field limit names the limit that the program reaches.
var attacks = map[string]struct{ script, limit string }{
	"forks":        {"for i in $(seq 300); do sleep 20 & done; wait", proclimit.Tasks},
	"sessions":     {"for i in $(seq 300); do setsid sleep 20 & done; wait", proclimit.Tasks},
	"double forks": {"for i in $(seq 30); do (for j in 1 2 3 4 5 6 7 8 9 10; do sleep 20 & done) ; done; sleep 20", proclimit.Tasks},
	hiddenAttack:   {"for i in $(seq 30); do (for j in 1 2 3 4 5 6 7 8 9 10; do setsid sleep 20 & done) ; done; sleep 20", proclimit.Tasks},
	"memory":       {"head -c 300000000 /dev/zero | tail -c 300000000 | sleep 20", proclimit.Memory},
	"a grandchild": {"(head -c 300000000 /dev/zero | tail -c 300000000 | sleep 20) & wait", proclimit.Memory},
}

// A program exceeds its limit. The limiter detects this with and without cgroups, and kills all descendants of the
// program.
func TestGroup_EndsProgramOverLimit(t *testing.T) {
	for way, limiter := range map[string]*proclimit.Limiter{"cgroup": proclimit.New(), "watched": proclimit.NewWatching()} {
		if way == "cgroup" && len(limiter.Report().NotEnforced) > 0 {
			t.Logf("cgroups can't be made here: %+v", limiter.Report())
			continue
		}
		for name, attack := range attacks {
			if way == "watched" && name == hiddenAttack {
				continue
			}
			t.Run(way+"/"+name, func(t *testing.T) { overLimit(t, limiter, attack.script, attack.limit) })
		}
		if way == "cgroup" {
			limiter.Close()
			if left := cgroupsOfThisProcess(t); len(left) > 0 {
				t.Errorf("cgroups are left: %s", left)
			}
		}
	}
}

// cgroupsOfThisProcess returns the cgroups that limiters of this process have created.
func cgroupsOfThisProcess(t *testing.T) (found []string) {
	t.Helper()
	_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, _ fs.DirEntry, _ error) error {
		if strings.HasPrefix(filepath.Base(path), "sluice-"+strconv.Itoa(os.Getpid())+"-") {
			found = append(found, path)
		}
		return nil
	})
	return found
}

// A program's cgroup is removed. The program continues to run, and the limiter itself counts the program's processes.
func TestGroup_CountsProcessesWithoutCgroup(t *testing.T) {
	limiter := proclimit.New()
	if len(limiter.Report().NotEnforced) > 0 {
		t.Skipf("cgroups can't be made here: %+v", limiter.Report())
	}
	gone := limiter.Group("gone", proclimit.Limits{Tasks: 100, Memory: 64 << 20})
	for _, dir := range cgroupsOfThisProcess(t) {
		inner, _ := filepath.Glob(filepath.Join(dir, "gone-*"))
		for _, d := range append(inner, dir) {
			if err := os.Remove(d); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, group := range map[string]*proclimit.Group{"gone before it joins": gone, "gone before it is made": limiter.Group("late", proclimit.Limits{Tasks: 100, Memory: 64 << 20})} {
		cmd := exec.Command("/bin/sleep", "60")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		group.Join(cmd.Process.Pid)
		if err := group.Check(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got := group.PIDs(); len(got) != 1 || got[0] != cmd.Process.Pid {
			t.Errorf("%s: the group has the processes %v, not %d", name, got, cmd.Process.Pid)
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		group.Close()
	}
	if notEnforced := strings.Join(limiter.Report().NotEnforced, "; "); !strings.Contains(notEnforced, "watched") {
		t.Errorf("the report has %q", notEnforced)
	}
	limiter.Close()
}

func overLimit(t *testing.T, limiter *proclimit.Limiter, script, limit string) {
	group := limiter.Group("test", proclimit.Limits{Tasks: 100, Memory: 64 << 20})
	cmd := exec.Command("/bin/sh", "-c", "read go; "+script)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	group.Join(cmd.Process.Pid)
	if _, err := in.Write([]byte("go\n")); err != nil {
		t.Fatal(err)
	}
	var found error
	eventually.Holds(t, "the limit is reached", func() bool { found = group.Check(); return found != nil })
	if exceeded, ok := errors.AsType[*proclimit.ExceededError](found); !ok || exceeded.Limit != limit {
		t.Errorf("Check returns %v, not %s", found, limit)
	}
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	group.End()
	left := group.PIDs()
	_ = cmd.Wait()
	group.Close()
	for _, pid := range left {
		if pid != cmd.Process.Pid {
			t.Errorf("process %d is left", pid)
		}
	}
}

func TestGroup_KeepsProgramWithinLimits(t *testing.T) {
	limiter := proclimit.NewWatching()
	group := limiter.Group("test", proclimit.Limits{Tasks: 100, Memory: 64 << 20})
	cmd := exec.Command("/bin/sleep", "1")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	group.Join(cmd.Process.Pid)
	if err := group.Check(); err != nil {
		t.Error(err)
	}
	if n := len(group.PIDs()); n != 1 {
		t.Errorf("the group has %d processes, not 1", n)
	}
	_ = cmd.Wait()
	group.Close()
	if notEnforced := strings.Join(limiter.Report().NotEnforced, "; "); !strings.Contains(notEnforced, "tasks: watched") {
		t.Errorf("the report has %s", notEnforced)
	}
}
