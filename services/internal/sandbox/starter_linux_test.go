package sandbox_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-mesh/sluice/services/internal/eventually"
	"github.com/sluice-mesh/sluice/services/internal/sandbox"
)

// inNamespaces returns a sandbox that uses namespaces. It skips the test if this system does not support namespaces.
func inNamespaces(t *testing.T) *sandbox.Sandbox {
	t.Helper()
	s, err := sandbox.NewBy(launcher, sandbox.Rules{Mode: sandbox.Auto}, sandbox.ByNamespaces)
	if err != nil {
		t.Skipf("no namespaces: %v", err)
	}
	return s
}

// startTrue starts a program that exits immediately, and returns the program's exit state.
func startTrue(t *testing.T, s *sandbox.Sandbox, started func(pid int)) *os.ProcessState {
	t.Helper()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	program, err := s.StartJoined(sandbox.Command{Path: "/bin/sh", Args: []string{"sh", "-c", "exit 7"}, Dir: "/"}, [3]*os.File{null, null, null},
		&syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}, started)
	if err != nil {
		t.Fatal(err)
	}
	state, err := program.Wait()
	if err != nil {
		t.Fatal(err)
	}
	return state
}

// If a process forks, the kernel write-protects all the memory of the process, and each page that is written afterwards
// causes a fault. With hundreds of MiB of memory, this stops the whole process for some time. Therefore the start of a
// program must not fork this process.
func TestStart_DoesNotForkThisProcess(t *testing.T) {
	s := inNamespaces(t)
	startTrue(t, s, func(int) {}) // starts the starter, and allocates memory that is allocated only once
	const pages = 16 << 10
	size := os.Getpagesize()
	memory, err := unix.Mmap(-1, 0, pages*size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(memory) }()
	_ = unix.Madvise(memory, unix.MADV_NOHUGEPAGE) // fails if the kernel has no huge pages
	write := func(value byte) (faults int64) {
		var before, after unix.Rusage
		_ = unix.Getrusage(unix.RUSAGE_SELF, &before)
		for i := range pages {
			memory[i*size] = value
		}
		_ = unix.Getrusage(unix.RUSAGE_SELF, &after)
		return after.Minflt - before.Minflt
	}
	if faults := write(1); faults < pages {
		t.Fatalf("writing %d new pages took %d faults", pages, faults)
	}
	startTrue(t, s, func(int) {})
	if faults := write(2); faults > pages/4 {
		t.Errorf("after a program was started, writing %d pages took %d faults, as after a fork", pages, faults)
	}
}

func TestStart_ProgramIsChildOfThisProcess(t *testing.T) {
	state := startTrue(t, inNamespaces(t), func(pid int) {
		if parent := parentOf(t, pid); parent != os.Getpid() {
			t.Errorf("the parent of the process is %d, want %d", parent, os.Getpid())
		}
	})
	if state.ExitCode() != 7 {
		t.Errorf("the program ended with %v, want exit status 7", state)
	}
}

// A starter is killed, as happens when memory runs out. The next time a program is started, another starter is used.
func TestStart_ReplacesKilledStarter(t *testing.T) {
	s := inNamespaces(t)
	for range 2 {
		starters := startersOf(t, os.Getpid())
		if len(starters) != 1 {
			t.Fatalf("%d starters, want 1", len(starters))
		}
		if err := syscall.Kill(starters[0], syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		eventually.Holds(t, "the starter has ended", func() bool { return len(startersOf(t, os.Getpid())) == 0 })
		if state := startTrue(t, s, func(int) {}); state.ExitCode() != 7 {
			t.Errorf("the program ended with %v, want exit status 7", state)
		}
	}
}

func parentOf(t *testing.T, pid int) (parent int) {
	t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(raw), ") ")
	if _, err := fmt.Sscanf(rest, "%s %d", new(string), &parent); err != nil {
		t.Fatal(err)
	}
	return parent
}

func startersOf(t *testing.T, of int) (pids []int) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range all {
		raw, err := os.ReadFile(file)
		var pid int
		if _, serr := fmt.Sscanf(file, "/proc/%d/cmdline", &pid); err != nil || serr != nil || !strings.HasSuffix(string(raw), "\x00stdio-starter\x00") {
			continue
		}
		if _, err := os.Stat(fmt.Sprintf("/proc/%d/stat", pid)); err == nil && parentOf(t, pid) == of {
			pids = append(pids, pid)
		}
	}
	return pids
}

// A starter does not respond. Starting a program returns an error and does not block. The next time a program is
// started, another starter is used.
func TestStart_ReplacesHangingStarter(t *testing.T) {
	s := inNamespaces(t)
	startTrue(t, s, func(int) {})
	starters := startersOf(t, os.Getpid())
	if len(starters) != 1 || syscall.Kill(starters[0], syscall.SIGSTOP) != nil {
		t.Fatalf("the starters %v can't be stopped", starters)
	}
	defer func() { _ = syscall.Kill(starters[0], syscall.SIGKILL) }()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	_, err = s.Start(sandbox.Command{Path: "/bin/true", Args: []string{"true"}, Dir: "/"}, [3]*os.File{null, null, null}, &syscall.SysProcAttr{Setsid: true})
	if err == nil || !strings.Contains(err.Error(), "no answer within") {
		t.Errorf("a start with a starter that hangs: %v", err)
	}
	if state := startTrue(t, s, func(int) {}); state.ExitCode() != 7 {
		t.Errorf("the next program ended with %v, want exit status 7", state)
	}
}
