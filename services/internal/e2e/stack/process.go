package stack

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// stopTimeout bounds an orderly stop.
const stopTimeout = 30 * time.Second

// Process is the program that users run, started by a test.
type Process struct {
	*Stack

	cmd    *exec.Cmd
	done   chan error
	mu     sync.Mutex
	stderr bytes.Buffer
}

// program builds `sluice` once for all tests of a package's run.
var program = sync.OnceValues(func() (string, error) { //nolint:gochecknoglobals // built once, removed with the system's temporary files
	dir, err := os.MkdirTemp("", "sluice-e2e-*")
	if err != nil {
		return "", err
	}
	bin := filepath.Join(dir, "sluice")
	out, err := exec.Command("go", "build", "-o", bin, "github.com/sluice-mesh/sluice/services/sluice/cmd/sluice").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build sluice: %w\n%s", err, out)
	}
	return bin, nil
})

// Program returns the path of the `sluice` program, built for this run.
func Program(t *testing.T) string {
	t.Helper()
	bin, err := program()
	if err != nil {
		t.Fatal(err)
	}
	return bin
}

// Start starts `sluice up` on a configuration that was written before, and waits
// until it serves. The process is killed with the test, if it still runs.
func Start(t *testing.T, s *Stack) *Process {
	t.Helper()
	p := &Process{Stack: s, cmd: exec.Command(Program(t), "up", "--config", s.Config, "--output", "json"), done: make(chan error, 1)}
	p.cmd.Stderr = (*locked)(p)
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line := make(chan []byte, 1)
	go func() {
		scanner := bufio.NewScanner(stdout)
		scanner.Scan()
		line <- bytes.Clone(scanner.Bytes())
		for scanner.Scan() { //nolint:revive // what comes after the first line is of no interest, and must not fill the pipe
		}
		p.done <- p.cmd.Wait()
	}()
	t.Cleanup(func() { p.Kill() })
	select {
	case text := <-line:
		p.read(t, text)
	case <-time.After(readyTimeout):
		t.Fatalf("sluice up did not serve within %v:\n%s", readyTimeout, p.Stderr())
	}
	return p
}

func (p *Process) read(t *testing.T, line []byte) {
	t.Helper()
	var at struct {
		MCP  map[string]string
		GRPC string
	}
	if err := json.Unmarshal(line, &at); err != nil {
		t.Fatalf("sluice up printed %q: %v\n%s", line, err, p.Stderr())
	}
	p.GRPC = at.GRPC
	for _, url := range at.MCP {
		p.URL, _, _ = strings.Cut(url, "/mcp/")
	}
}

// locked is a process's standard error, which the process writes while the test
// reads.
type locked Process

// Write implements io.Writer.
func (l *locked) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.stderr.Write(b)
}

// Stderr returns what the process has written to standard error.
func (p *Process) Stderr() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stderr.String()
}

// PID is the process's id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Kill kills the process as kill -9 does, and waits for its end.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill() // it may have ended by itself
	if err, ok := <-p.done; ok {
		_ = err
		close(p.done)
	}
}

// Stop stops the process as Ctrl-C does, and returns how it ended.
func (p *Process) Stop(t *testing.T) error {
	t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-p.done:
		close(p.done)
		return err
	case <-time.After(stopTimeout):
		return errors.New("the process did not stop in time")
	}
}
