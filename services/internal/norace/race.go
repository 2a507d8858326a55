//go:build race

package norace

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// Some returns a tenth of the cases of a test, but at least one. The other cases are checked without the race detector.
func Some(all int) int { return (all + 9) / 10 }

// Run builds the package's tests as a program without the race detector, runs it, and returns the exit code.
func Run(*testing.M) int {
	dir, err := os.MkdirTemp("", "norace-*")
	if err != nil {
		fmt.Println(err)
		return 1
	}
	defer os.RemoveAll(dir) //nolint:errcheck // the system removes remaining temporary files
	program := filepath.Join(dir, "norace.test")
	if out, err := exec.Command("go", "test", "-c", "-trimpath", "-o", program, ".").CombinedOutput(); err != nil {
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
