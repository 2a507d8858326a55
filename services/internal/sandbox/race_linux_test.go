//go:build race

package sandbox_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// runTests runs the tests in a program without the race detector: they are about a
// hundred processes, of which each would take a second to start with it, and none has
// two goroutines that share anything.
func runTests(*testing.M) int {
	dir, err := os.MkdirTemp("", "sandbox-*")
	if err != nil {
		fmt.Println(err)
		return 1
	}
	defer os.RemoveAll(dir) //nolint:errcheck // what stays goes with the system's temporary files
	program := filepath.Join(dir, "sandbox.test")
	if out, err := exec.Command("go", "test", "-c", "-o", program, ".").CombinedOutput(); err != nil {
		fmt.Printf("build the tests: %v\n%s", err, out)
		return 1
	}
	tests := exec.Command(program, os.Args[1:]...)
	tests.Stdout, tests.Stderr = os.Stdout, os.Stderr
	err = tests.Run()
	if _, failed := errors.AsType[*exec.ExitError](err); err != nil && !failed {
		fmt.Println(err)
	}
	return tests.ProcessState.ExitCode()
}
