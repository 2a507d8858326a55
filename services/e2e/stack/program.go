package stack

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/internal/sandbox"
)

// runTimeout limits how long [Run] lets a command run.
const runTimeout = 3 * time.Minute

// builds contains the programs that tests run. Each program is built once per run of a test package.
type builds struct {
	mu    sync.Mutex
	dir   string
	built map[string]error
	// inPath is true if dir is in PATH. In that case, messages mention the program without its path.
	inPath bool
	// launcher is the launcher with which the test process starts stdio servers.
	launcher sandbox.Launcher
}

var programs = builds{built: make(map[string]error)}

// programsDir is the name of the environment variable that contains the directory for built programs. If it is not set,
// each test package uses a temporary directory. `make test` sets it to the directory of `make build`, so that each
// program is linked only once.
const programsDir = "SLUICE_TEST_PROGRAMS"

// build builds a program with the flags of `make build`, so that it reuses that command's build cache.
func (b *builds) build(name string) (err error) {
	if b.dir == "" {
		if b.dir = os.Getenv(programsDir); b.dir == "" {
			b.dir, err = os.MkdirTemp("", "sluice-e2e-*")
		}
		if err != nil {
			return err
		}
	}
	path := "github.com/sluice-mesh/sluice/services/" + name + "/cmd/" + name
	if out, err := exec.Command("go", "build", "-trimpath", "-o", b.dir+"/", path).CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", name, err, out)
	}
	return nil
}

// Program returns the path of the program `sluice` or of the program of a mesh service, and builds it if necessary.
// [Main] removes the program, unless SLUICE_TEST_PROGRAMS is set.
func Program(t *testing.T, name string) string {
	t.Helper()
	programs.mu.Lock()
	defer programs.mu.Unlock()
	err, known := programs.built[name]
	if !known {
		err = programs.build(name)
		programs.built[name] = err
	}
	if err != nil {
		t.Fatal(err)
	}
	if !programs.inPath {
		programs.inPath = true
		if err := os.Setenv("PATH", programs.dir+string(os.PathListSeparator)+os.Getenv("PATH")); err != nil { //nolint:usetesting // for all tests
			t.Fatal(err)
		}
	}
	return filepath.Join(programs.dir, name)
}

// Main runs the tests of a package, removes the programs that were built for them, and returns the exit code. A
// package that uses [Program] or [StartInProcess] calls Main in TestMain.
func Main(m *testing.M) int {
	programs.launcher = sandbox.RunLauncher()
	code := m.Run()
	if programs.dir != "" && programs.dir != os.Getenv(programsDir) {
		_ = os.RemoveAll(programs.dir) // if this fails, the system cleans its temporary files later
	}
	return code
}

// environ returns the environment of this process without the variables that configure a mesh (SLUICE_* and OTEL_*). A
// variable E2E_NAME is passed on as NAME. For example, E2E_SLUICE_DECISIONS_KEEP=false makes all programs ask the
// policy service about every call.
func environ(more ...string) []string {
	var env []string
	for _, v := range os.Environ() {
		own, forPrograms := strings.CutPrefix(v, "E2E_")
		switch {
		case forPrograms:
			env = append(env, own)
		case !strings.HasPrefix(v, "SLUICE_") && !strings.HasPrefix(v, "OTEL_"):
			env = append(env, v)
		}
	}
	return append(env, more...)
}

// Command describes a command to run. The zero value runs `sluice` without arguments.
type Command struct {
	// Program is the name of the program to run, as for [Program]. If it is empty, `sluice` is run.
	Program string
	// Args contains the arguments.
	Args []string
	// Dir is the working directory. If it is empty, the command runs in the test's directory.
	Dir string
	// Env contains additional environment variables, as NAME=VALUE.
	Env []string
	// Stdin is the content of standard input.
	Stdin string
}

// CommandResult is the result of a command.
type CommandResult struct {
	// Code is the exit code.
	Code int
	// Stdout and Stderr contain the output.
	Stdout, Stderr string
}

// Run runs a command until it exits. The test fails if the command can't be started.
func Run(t *testing.T, c Command) CommandResult {
	t.Helper()
	name := cmp.Or(c.Program, "sluice")
	program := Program(t, name) // outside the timeout, because building may take longer than running
	ctx, cancel := context.WithTimeout(t.Context(), runTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, c.Args...)
	var stdout, stderr bytes.Buffer
	cmd.Dir, cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = c.Dir, environ(c.Env...), strings.NewReader(c.Stdin), &stdout, &stderr
	err := cmd.Run()
	if _, exited := errors.AsType[*exec.ExitError](err); (err != nil && !exited) || ctx.Err() != nil {
		t.Fatalf("run %s %s: %v\n%s%s", name, strings.Join(c.Args, " "), errors.Join(err, ctx.Err()), stdout.String(), stderr.String())
	}
	return CommandResult{Code: cmd.ProcessState.ExitCode(), Stdout: stdout.String(), Stderr: stderr.String()}
}

// assignedAddrs contains the addresses that FreeAddr has returned in this process. FreeAddr returns each address only
// once, because a test that has received an address may temporarily stop listening on it.
var assignedAddrs sync.Map

// FreeAddr returns a free loopback address that no other test in this process has received. Its port is below the
// ephemeral ports, so that the system never assigns it.
func FreeAddr(t *testing.T) string {
	t.Helper()
	const lowest, count, attempts = 15000, 17000, 100 // below every system's ephemeral ports
	for range attempts {
		addr := fmt.Sprintf("127.0.0.1:%d", lowest+rand.IntN(count))
		if lis, err := net.Listen("tcp", addr); err == nil {
			_ = lis.Close() // the listener only showed that the port is free
			if _, taken := assignedAddrs.LoadOrStore(addr, true); !taken {
				return addr
			}
		}
	}
	t.Fatal("no free port was found")
	return ""
}
