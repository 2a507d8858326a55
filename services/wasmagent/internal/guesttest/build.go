// Package guesttest provides what tests of guests need: modules that are built from Go, modules that are made by hand,
// and the program of workers.
package guesttest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// Guests is the import path of the shipped guests' packages.
const Guests = "github.com/sluice-mesh/sluice/sdk/guests/"

// modules caches the built modules, by build mode and package.
var modules sync.Map

// Module builds the guest of a Go package, once in a test program.
func Module(t testing.TB, pkg string) []byte {
	t.Helper()
	return built(t, pkg, "c-shared")
}

// Command builds a Go package as a command, which is not a guest.
func Command(t testing.TB, pkg string) []byte {
	t.Helper()
	return built(t, pkg, "default")
}

func built(t testing.TB, pkg, mode string) []byte {
	t.Helper()
	//nolint:usetesting // it outlives the first test that needs it
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

// programsDir names the folder for built programs; see package stack of the tests.
const programsDir = "SLUICE_TEST_PROGRAMS"

// programDir is the temporary folder of the program; empty if there is none.
var programDir string

// program builds the program of workers, without the race detector, with which compiling a guest takes half a minute.
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

// Program builds the program of workers, once; [Main] removes it.
func Program(t testing.TB) string {
	t.Helper()
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// Main is the TestMain of packages whose tests use [Program].
func Main(m *testing.M) int {
	code := m.Run()
	if programDir != "" {
		_ = os.RemoveAll(programDir)
	}
	return code
}
