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

// runTimeout bounds a command that is to end by itself.
const runTimeout = time.Minute

// builds holds the programs that tests run, each built once for all tests of a
// package's run.
type builds struct {
	mu    sync.Mutex
	dir   string
	built map[string]error
	// self is how this program starts servers over stdio.
	self sandbox.Launcher
}

var programs = builds{built: make(map[string]error)}

// programsDir names the folder that programs are built into; if it is not set, each run of a package
// has a temporary folder. `make test` names that of `make build`, so that each program is linked once.
const programsDir = "SLUICE_TEST_PROGRAMS"

// build builds a program with the flags of `make build`, so that what is compiled
// there need not be compiled again.
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

// Program returns the path of a program, `sluice` or that of a role, built for
// this run. [Main] removes it.
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
	return filepath.Join(programs.dir, name)
}

// Main runs a package's tests, removes what was built for them, and returns the
// exit code. A package that uses [Program] or [Up] calls it in TestMain.
func Main(m *testing.M) int {
	programs.self = sandbox.RunLauncher()
	code := m.Run()
	if programs.dir != "" && programs.dir != os.Getenv(programsDir) {
		_ = os.RemoveAll(programs.dir) // what stays goes with the system's temporary files
	}
	return code
}

// environ is this process's environment without what would configure a mesh, but for what is
// named with E2E_ before it: E2E_SLUICE_DECISIONS_KEEP=false has all programs ask policy about
// every call.
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

// Command is a command to run. The zero value runs `sluice` without arguments.
type Command struct {
	// Program is its name, see [Program]; empty: sluice.
	Program string
	// Args are its arguments.
	Args []string
	// Dir is where it runs; empty: where the test does.
	Dir string
	// Env are more variables, as NAME=VALUE.
	Env []string
	// Stdin is its standard input.
	Stdin string
}

// Ran is what came of a command.
type Ran struct {
	// Code is the exit code.
	Code int
	// Stdout and Stderr are what it printed.
	Stdout, Stderr string
}

// Run runs a command to its end. The test fails if it could not be run at all.
func Run(t *testing.T, c Command) Ran {
	t.Helper()
	name := cmp.Or(c.Program, "sluice")
	program := Program(t, name) // building it may take longer than running it
	ctx, cancel := context.WithTimeout(t.Context(), runTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, c.Args...)
	var stdout, stderr bytes.Buffer
	cmd.Dir, cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = c.Dir, environ(c.Env...), strings.NewReader(c.Stdin), &stdout, &stderr
	err := cmd.Run()
	if _, exited := errors.AsType[*exec.ExitError](err); (err != nil && !exited) || ctx.Err() != nil {
		t.Fatalf("run %s %s: %v\n%s%s", name, strings.Join(c.Args, " "), errors.Join(err, ctx.Err()), stdout.String(), stderr.String())
	}
	return Ran{Code: cmd.ProcessState.ExitCode(), Stdout: stdout.String(), Stderr: stderr.String()}
}

// given are the addresses that tests of this process were given: whoever has one may stop
// listening for a while, and still has it.
var given sync.Map

// FreeAddr returns an address on loopback that is free, that the system gives to nobody who
// asks for any, and that no other test of this process was given.
func FreeAddr(t *testing.T) string {
	t.Helper()
	const lowest, count, attempts = 15000, 17000, 100 // below every system's ephemeral ports
	for range attempts {
		addr := fmt.Sprintf("127.0.0.1:%d", lowest+rand.IntN(count))
		if lis, err := net.Listen("tcp", addr); err == nil {
			_ = lis.Close() // it was only to be known as free
			if _, taken := given.LoadOrStore(addr, true); !taken {
				return addr
			}
		}
	}
	t.Fatal("no free port was found")
	return ""
}
