// Package guesttest provides modules, and the worker program, for tests that run guests. The modules are built from Go
// packages or encoded by hand.
package guesttest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// Guests is the prefix of the import paths of the shipped guests.
const Guests = "github.com/sluice-mesh/sluice/sdk/guests/"

var modules sync.Map

// Module builds a guest from a Go package. Each test program builds a package only once.
func Module(t testing.TB, pkg string) []byte {
	t.Helper()
	return build(t, pkg, "c-shared")
}

// Command builds a Go package as a WebAssembly command, which is not a guest.
func Command(t testing.TB, pkg string) []byte {
	t.Helper()
	return build(t, pkg, "default")
}

func build(t testing.TB, pkg, mode string) []byte {
	t.Helper()
	//nolint:usetesting // the folder must not be removed at the end of the first test
	build, _ := modules.LoadOrStore(mode+" "+pkg, sync.OnceValues(func() ([]byte, error) {
		dir, err := os.MkdirTemp("", "guest")
		if err != nil {
			return nil, err
		}
		defer os.RemoveAll(dir)
		path := filepath.Join(dir, "guest.wasm")
		cmd := exec.Command("go", "build", "-buildmode="+mode, "-trimpath", "-o", path, pkg)
		cmd.Env = append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm", "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("%w: %s", err, out)
		}
		return os.ReadFile(path)
	}))
	text, err := build.(func() ([]byte, error))()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// programsDir is the name of the environment variable that contains the directory for built programs. `make test` sets
// the variable. Package stack of the end-to-end tests reads it, too.
const programsDir = "SLUICE_TEST_PROGRAMS"

// programDir is the temporary directory of the worker program, or empty if it has not been created.
var programDir string

// program builds the worker program. It builds it without the race detector, because compiling a guest with the race
// detector takes half a minute.
var program = sync.OnceValues(func() (string, error) {
	dir := os.Getenv(programsDir)
	if dir == "" {
		var err error
		if dir, err = os.MkdirTemp("", "wasmagent-*"); err != nil {
			return "", err
		}
		programDir = dir
	}
	path := filepath.Join(dir, "wasmagent")
	if out, err := exec.Command("go", "build", "-trimpath", "-o", path, "github.com/sluice-mesh/sluice/services/wasmagent/cmd/wasmagent").CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return path, nil
})

// Program builds the worker program once and returns its path. [Main] removes the program.
func Program(t testing.TB) string {
	t.Helper()
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// cacheDir is the temporary directory for compiled modules, or empty if it has not been created.
var cacheDir string

var cache = sync.OnceValues(func() (_ string, err error) {
	if built := os.Getenv(programsDir); built != "" {
		shared := filepath.Join(built, "compiled-guests")
		return shared, os.MkdirAll(shared, 0o700)
	}
	cacheDir, err = os.MkdirTemp("", "compiled-*")
	return cacheDir, err
})

// Cache returns the directory in which tests store compiled modules. All packages that `make test` tests share it.
// Otherwise [Main] removes the directory.
func Cache(t testing.TB) string {
	t.Helper()
	dir, err := cache()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// Main runs the tests of a package that uses [Program] or [Cache]. The package's TestMain must call Main.
func Main(m *testing.M) int {
	code := m.Run()
	for _, dir := range []string{programDir, cacheDir} {
		if dir != "" {
			_ = os.RemoveAll(dir)
		}
	}
	return code
}
