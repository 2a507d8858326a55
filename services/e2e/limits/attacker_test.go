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

// attackerVariable names the environment variable that makes this test binary run as a stdio server (value "server") or
// as a helper process of that server.
const attackerVariable = "SLUICE_LIMITS_ATTACKER"

const (
	// maxChildren is the number of processes after which an attacker stops by itself.
	maxChildren = 3000
	// maxThreads is the number of threads after which an attacker stops by itself.
	maxThreads = 2000
	// maxHog is the memory after which an attacker stops by itself, in bytes.
	maxHog = 768 << 20
)

func TestMain(m *testing.M) {
	if role := os.Getenv(attackerVariable); role != "" {
		os.Exit(attacker(role))
	}
	os.Exit(stack.Main(m))
}

// attacker runs a role of the attacker program and returns the exit code.
func attacker(role string) int {
	switch role {
	case "server":
		serve()
	case "hog":
		hog()
	case "sleeper":
		waitLong()
	}
	return 0
}

// serve serves MCP on standard input and output, with the tools `fine`, `pid` and `attack`.
func serve() {
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
				text = attack(m.Params.Arguments.Kind)
			}
			raw, _ := json.Marshal(text)
			result = `{"content":[{"type":"text","text":` + string(raw) + `}]}`
		}
		fmt.Printf(`{"jsonrpc":"2.0","id":%s,"result":%s}`+"\n", m.ID, result)
	}
}

// attack runs one attack and returns its result as text.
func attack(kind string) string {
	kind, argument, _ := strings.Cut(kind, ":")
	attacks := map[string]func(string) error{
		"fork": func(string) error { return forkMany(nil) },
		"setsid": func(string) error {
			return forkMany(&syscall.SysProcAttr{Setsid: true})
		},
		"double-fork": doubleFork,
		"threads":     func(string) error { return threads() },
		"memory":      func(string) error { hog(); return nil },
		"grandchild":  func(string) error { return grandchildHog() },
		"one-file":    func(string) error { return oneFile("big", false) },
		"unlinked":    func(string) error { return oneFile("gone", true) },
		"small-files": func(string) error { return smallFiles() },
		"sparse":      func(string) error { return sparse() },
		"nested":      func(string) error { return nested() },
		"inotify":     func(string) error { return inotify() },
		"file":        fileOf,
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
			time.Sleep(30 * time.Second) // the gateway detects the limit and ends this program during this time
			return err
		}
	}
	return nil
}

// doubleFork starts groups of ten processes whose parent ends at once, each group in a session of its own. Each process
// sleeps for the given number of seconds.
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

// threads starts threads in this process.
func threads() error {
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

// hog allocates maxHog bytes and holds them.
func hog() {
	var kept [][]byte
	for total := 0; total < maxHog; total += 8 << 20 {
		block := make([]byte, 8<<20)
		for i := 0; i < len(block); i += 4096 {
			block[i] = 1
		}
		kept = append(kept, block)
	}
	waitLong()
	runtime.KeepAlive(kept)
}

// grandchildHog makes a process that is not a direct child of this one allocate the memory.
func grandchildHog() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command("/bin/sh", "-c", `"$0" & wait`, self)
	cmd.Env = []string{attackerVariable + "=hog"}
	err = cmd.Run()
	waitLong() // the gateway detects the limit and ends this program during this time
	return err
}

// oneFile writes a file until the disk is full or the file has 512 MiB. If unlinked is set, it removes the name of the
// file first.
func oneFile(name string, unlinked bool) error {
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

// smallFiles creates many empty files.
func smallFiles() error {
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

// sparse creates a file with a size of 1 TiB and no blocks, which takes no space.
func sparse() error {
	f, err := os.Create("sparse")
	if err != nil {
		return err
	}
	return errors.Join(f.Truncate(1<<40), f.Close())
}

// nested creates folders within each other until no path can name the innermost one, and writes a large file into that
// folder.
func nested() error {
	name := strings.Repeat("d", 250)
	for range 40 {
		if err := os.Mkdir(name, 0o700); err != nil {
			return err
		}
		if err := os.Chdir(name); err != nil {
			return err
		}
	}
	return oneFile("big", false)
}

// inotify creates inotify instances until one fails.
func inotify() error {
	for n := range 1000 {
		if _, err := unix.InotifyInit1(0); err != nil {
			return fmt.Errorf("%d instances: %w", n, err)
		}
	}
	return nil
}

// fileOf writes a file with a size of mib MiB.
func fileOf(mib string) error {
	n, err := strconv.Atoi(mib)
	if err != nil {
		return err
	}
	return os.WriteFile("kept", make([]byte, n<<20), 0o600)
}

// oomScore returns the oom_score_adj of this process as an error, because attack returns the text of errors.
func oomScore() error {
	raw, err := os.ReadFile("/proc/self/oom_score_adj")
	return fmt.Errorf("score %s%w", strings.TrimSpace(string(raw)), errors.Join(err))
}
