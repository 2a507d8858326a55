//go:build linux

package limits_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

// attackerVariable is the name of the environment variable that makes this test binary run as a stdio server (value
// "server") or as a helper process of that server.
const attackerVariable = "SLUICE_LIMITS_ATTACKER"

const (
	// maxChildren is the number of processes after which an attack stops starting more.
	maxChildren = 3000
	// maxThreads is the number of threads after which an attack stops starting more.
	maxThreads = 2000
	// maxMemory is the amount of memory, in bytes, after which an attack stops allocating more.
	maxMemory = 768 << 20
)

func TestMain(m *testing.M) {
	if role := os.Getenv(attackerVariable); role != "" {
		os.Exit(runAttackerRole(role))
	}
	os.Exit(stack.Main(m))
}

// runAttackerRole runs the test binary in one of the attacker's roles, and returns the exit code.
func runAttackerRole(role string) int {
	switch role {
	case "server":
		serveMCP()
	case "hog":
		allocateMemory()
	case "sleeper":
		waitLong()
	}
	return 0
}

// serveMCP serves MCP over stdio, with the tools `fine` and `attack`.
func serveMCP() {
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		var m struct {
			ID     json.RawMessage
			Method string
			Params struct {
				Name      string
				Arguments struct{ Kind string }
			}
		}
		if json.Unmarshal(in.Bytes(), &m) != nil || m.ID == nil {
			continue
		}
		result := `{}`
		switch m.Method {
		case "initialize":
			result = `{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"attacker","version":"1"}}`
		case "tools/list":
			result = `{"tools":[{"name":"fine","inputSchema":{"type":"object"}},{"name":"attack","inputSchema":{"type":"object"}}]}`
		case "tools/call":
			text := "fine"
			if m.Params.Name == "attack" {
				text = runAttack(m.Params.Arguments.Kind)
			}
			raw, _ := json.Marshal(text)
			result = `{"content":[{"type":"text","text":` + string(raw) + `}]}`
		}
		fmt.Printf(`{"jsonrpc":"2.0","id":%s,"result":%s}`+"\n", m.ID, result)
	}
}

// runAttack runs one attack and returns its result.
func runAttack(kind string) string {
	kind, argument, _ := strings.Cut(kind, ":")
	attacks := map[string]func(string) error{
		"fork": func(string) error { return forkMany(nil) },
		"setsid": func(string) error {
			return forkMany(&syscall.SysProcAttr{Setsid: true})
		},
		"double-fork": doubleFork,
		"threads":     func(string) error { return startThreads() },
		"memory":      func(string) error { allocateMemory(); return nil },
		"grandchild":  func(string) error { return allocateInGrandchild() },
		"one-file":    func(string) error { return fillOneFile("big", false) },
		"unlinked":    func(string) error { return fillOneFile("gone", true) },
		"small-files": func(string) error { return createSmallFiles() },
		"sparse":      func(string) error { return createSparseFile() },
		"nested":      func(string) error { return fillNestedFolder() },
		"inotify":     func(string) error { return exhaustInotify() },
		"file":        writeFileOfSize,
		"oom":         func(string) error { return oomScore() },
	}
	run, ok := attacks[kind]
	if !ok {
		return "unknown attack " + kind
	}
	if err := run(argument); err != nil {
		return err.Error()
	}
	return "did all of it"
}

// forkMany starts processes until a start fails or maxChildren are running.
func forkMany(sys *syscall.SysProcAttr) error {
	for range maxChildren {
		cmd := exec.Command("/bin/sleep", "60")
		cmd.SysProcAttr = sys
		if err := cmd.Start(); err != nil {
			time.Sleep(30 * time.Second) // the gateway detects the limit and ends this process during this time
			return err
		}
	}
	return nil
}

// doubleFork starts groups of ten processes. The parent of each group exits at once. Each group has its own session.
// Each process sleeps for the given number of seconds.
func doubleFork(seconds string) error {
	for range maxChildren / 10 {
		cmd := exec.Command("/bin/sh", "-c", "for i in 1 2 3 4 5 6 7 8 9 10; do sleep "+seconds+" & done")
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err := cmd.Run(); err != nil {
			time.Sleep(30 * time.Second)
			return err
		}
	}
	return nil
}

func startThreads() error {
	for range maxThreads {
		go func() {
			runtime.LockOSThread()
			waitLong()
		}()
	}
	waitLong()
	return nil
}

// waitLong blocks the thread for 30 s.
func waitLong() { _ = unix.Nanosleep(&unix.Timespec{Sec: 30}, nil) }

// allocateMemory allocates maxMemory bytes and does not release them.
func allocateMemory() {
	var kept [][]byte
	for total := 0; total < maxMemory; total += 8 << 20 {
		block := make([]byte, 8<<20)
		for i := 0; i < len(block); i += 4096 {
			block[i] = 1
		}
		kept = append(kept, block)
	}
	waitLong()
	runtime.KeepAlive(kept)
}

// allocateInGrandchild makes a grandchild of this process allocate maxMemory bytes.
func allocateInGrandchild() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command("/bin/sh", "-c", `"$0" & wait`, self)
	cmd.Env = []string{attackerVariable + "=hog"}
	err = cmd.Run()
	waitLong() // the gateway detects the limit and ends this process during this time
	return err
}

// fillOneFile writes to a file until the disk is full or the file has 512 MiB. If unlinked is true, it first unlinks
// the file.
func fillOneFile(name string, unlinked bool) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	if unlinked {
		_ = os.Remove(name)
	}
	block := make([]byte, 1<<20)
	for range 512 {
		if _, err := f.Write(block); err != nil {
			waitLong() // the file stays open, so that its blocks stay allocated
			return err
		}
	}
	waitLong()
	return errors.Join(f.Close())
}

func createSmallFiles() error {
	for i := range 1_000_000 {
		dir := strconv.Itoa(i / 1000)
		if i%1000 == 0 {
			if err := os.Mkdir(dir, 0o700); err != nil {
				waitLong()
				return err
			}
		}
		f, err := os.Create(filepath.Join(dir, strconv.Itoa(i)))
		if err != nil {
			waitLong()
			return err
		}
		_ = f.Close()
	}
	waitLong()
	return nil
}

// createSparseFile creates a file of 1 TiB that uses no blocks.
func createSparseFile() error {
	f, err := os.Create("sparse")
	if err != nil {
		return err
	}
	return errors.Join(f.Truncate(1<<40), f.Close())
}

// fillNestedFolder creates nested directories until the path is too long for a system call, and writes a large file in
// the innermost directory.
func fillNestedFolder() error {
	name := strings.Repeat("d", 250)
	for range 40 {
		if err := os.Mkdir(name, 0o700); err != nil {
			return err
		}
		if err := os.Chdir(name); err != nil {
			return err
		}
	}
	return fillOneFile("big", false)
}

// exhaustInotify creates inotify instances until the kernel refuses.
func exhaustInotify() error {
	for n := range 1000 {
		if _, err := unix.InotifyInit1(0); err != nil {
			return fmt.Errorf("%d instances: %w", n, err)
		}
	}
	return nil
}

// writeFileOfSize writes a file whose size is mib MiB.
func writeFileOfSize(mib string) error {
	n, err := strconv.Atoi(mib)
	if err != nil {
		return err
	}
	return os.WriteFile("kept", make([]byte, n<<20), 0o600)
}

// oomScore returns the oom_score_adj of this process as an error, because runAttack returns the message of the error.
func oomScore() error {
	raw, err := os.ReadFile("/proc/self/oom_score_adj")
	return fmt.Errorf("score %s%w", strings.TrimSpace(string(raw)), errors.Join(err))
}
