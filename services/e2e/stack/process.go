package stack

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// stopTimeout limits how long an orderly stop takes.
const stopTimeout = time.Minute

// Process is a mesh that runs in a `sluice` process.
type Process struct {
	*Stack

	cmd *exec.Cmd
	// line receives the first line of standard output. If the process exits before the line is complete, line receives
	// the incomplete line.
	line chan []byte
	// ended is closed when the process has exited. After that, err contains the result of cmd.Wait.
	ended chan struct{}
	err   error

	stdout, stderr output
}

// output collects the output of a process. The test may read it while the process writes.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements io.Writer.
func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// Start starts `sluice up` with a configuration that [WriteConfig] has written, and waits until the mesh serves. The
// process is killed when the test ends, if it is still running.
func Start(t *testing.T, s *Stack) *Process {
	t.Helper()
	p := Launch(t, s, append([]string{"--output", "json"}, s.Args...)...)
	p.await(t)
	return p
}

// StartWithoutConfig starts `sluice up` without a configuration, in an empty directory. The mesh uses its demo server,
// its starter policy and generated tokens, and the system chooses its addresses.
func StartWithoutConfig(t *testing.T) *Process {
	t.Helper()
	return StartWithoutConfigIn(t, t.TempDir())
}

// StartWithoutConfigIn is like [StartWithoutConfig] but uses the given directory, which may contain the files of an
// earlier run.
func StartWithoutConfigIn(t *testing.T, dir string) *Process {
	t.Helper()
	p := Launch(t, &Stack{Dir: dir}, "--listen", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--output", "json")
	p.await(t)
	return p
}

// Launch starts `sluice up` in the stack's directory with the additional arguments, and with the stack's configuration
// if there is one. It does not wait until the mesh serves.
func Launch(t *testing.T, s *Stack, args ...string) *Process {
	t.Helper()
	args = append([]string{"up"}, args...)
	if s.Config != "" {
		args = append(args, "--config", s.Config)
	}
	program := s.Program
	if program == "" {
		program = Program(t, "sluice")
	}
	line := slices.Concat(s.Wrapper, []string{program}, args)
	p := &Process{Stack: s, cmd: exec.Command(line[0], line[1:]...), line: make(chan []byte, 1), ended: make(chan struct{})}
	p.cmd.Dir, p.cmd.Env, p.cmd.Stderr = s.Dir, environ(s.Env...), &p.stderr
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: s.OwnGroup}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go p.readStdout(stdout)
	t.Cleanup(p.Kill)
	return p
}

// readStdout reads standard output until the process exits, so that the pipe never fills.
func (p *Process) readStdout(stdout io.Reader) {
	defer close(p.ended)
	lines := bufio.NewReader(io.TeeReader(stdout, &p.stdout))
	first, _ := lines.ReadBytes('\n') // if the process ends before it serves, its standard error has the reason
	p.line <- first
	_, _ = io.Copy(io.Discard, lines) // Copy returns when the process ends
	p.err = p.cmd.Wait()
}

// await waits until the mesh serves, and stores its addresses.
func (p *Process) await(t *testing.T) {
	t.Helper()
	select {
	case text := <-p.line:
		p.parseAddresses(t, text)
	case <-time.After(readyTimeout):
		t.Fatalf("sluice up did not serve within %v:\n%s", readyTimeout, p.Stderr())
	}
}

func (p *Process) parseAddresses(t *testing.T, line []byte) {
	t.Helper()
	var at struct {
		MCP    map[string]string
		GRPC   string
		Tokens string
	}
	if err := json.Unmarshal(line, &at); err != nil {
		t.Fatalf("sluice up printed %q: %v\n%s", line, err, p.Stderr())
	}
	p.GRPC = at.GRPC
	for _, url := range at.MCP {
		p.URL, _, _ = strings.Cut(url, "/mcp/")
	}
	p.Tokens = at.Tokens
	if p.Tokens != "" && !filepath.IsAbs(p.Tokens) {
		p.Tokens = filepath.Join(p.Dir, p.Tokens)
	}
}

// AwaitServing waits until the mesh serves or has exited, for at most readyTimeout. It reports whether the mesh serves.
func (p *Process) AwaitServing() bool {
	select {
	case line := <-p.line:
		p.line <- line
		return bytes.HasPrefix(line, []byte("{"))
	case <-time.After(readyTimeout):
		return false
	}
}

// Stdout returns what the process has written to standard output.
func (p *Process) Stdout() string { return p.stdout.String() }

// Stderr returns what the process has written to standard error.
func (p *Process) Stderr() string { return p.stderr.String() }

// PID returns the process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// GeneratedToken returns a token that `sluice up` generated. The test fails if the token's file does not have mode
// 0600.
func (p *Process) GeneratedToken(t *testing.T, name string) string {
	t.Helper()
	file := filepath.Join(p.Tokens, name)
	info, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o600 {
		t.Errorf("%s has mode %v, want 0600", file, info.Mode())
	}
	return strings.TrimSpace(ReadFile(t, file))
}

// highWater matches the highest resident memory in /proc/PID/status.
var highWater = regexp.MustCompile(`VmHWM:\s+(\d+) kB`)

// PeakMemory returns the process's highest resident memory so far, in MiB. It skips the test on a system without /proc.
func (p *Process) PeakMemory(t *testing.T) int {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.PID()))
	if err != nil {
		t.Skip("no /proc")
	}
	m := highWater.FindSubmatch(status)
	if m == nil {
		t.Fatalf("/proc does not have the highest resident memory: %s", status)
	}
	kib, err := strconv.Atoi(string(m[1]))
	if err != nil {
		t.Fatal(err)
	}
	return kib >> 10
}

// Kill kills the process with SIGKILL, and waits until it has exited.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill() // the process may have ended already
	<-p.ended
}

// Interrupt sends SIGINT to the process, as Ctrl-C does.
func (p *Process) Interrupt(t *testing.T) {
	t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
}

// Stop stops the process with SIGINT, as Ctrl-C does, and returns its exit error, or nil.
func (p *Process) Stop(t *testing.T) error {
	t.Helper()
	p.Interrupt(t)
	return p.Wait()
}

// Wait waits until the process has exited after a signal. It returns the exit error, or nil.
func (p *Process) Wait() error {
	select {
	case <-p.ended:
		return p.err
	case <-time.After(stopTimeout):
		return errors.New("the process did not stop in time")
	}
}
