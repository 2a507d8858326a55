package stack

import (
	"encoding/json"
	"strings"
	"testing"
)

// CheckCommand fails the test unless the command exited with the given code and out contains all fragments. out must be
// a part of the command's output.
func CheckCommand(t *testing.T, ran CommandResult, code int, out string, fragments ...string) {
	t.Helper()
	if ran.Code != code {
		t.Errorf("exit code %d, want %d\n%s%s", ran.Code, code, ran.Stdout, ran.Stderr)
	}
	for _, want := range fragments {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not in\n%s\n(all: %s%s)", want, out, ran.Stdout, ran.Stderr)
		}
	}
}

// DecodeOutput unmarshals the output of a command that ran with `--output json`.
func DecodeOutput[T any](t *testing.T, ran CommandResult) T {
	t.Helper()
	var v T
	if err := json.Unmarshal([]byte(ran.Stdout), &v); err != nil {
		t.Fatalf("exit code %d, the output is not JSON: %v\n%s%s", ran.Code, err, ran.Stdout, ran.Stderr)
	}
	return v
}

// DoctorFinding is one finding of `sluice doctor`.
type DoctorFinding struct{ State, Of, Found, Do string }

// RunDoctor runs `sluice doctor` with the given environment variables. It returns the exit code and the findings. The
// key of a finding consists of its state and its subject, for example "problem mesh".
func RunDoctor(t *testing.T, env ...string) (code int, found map[string]DoctorFinding) {
	t.Helper()
	ran := Run(t, Command{Args: []string{"doctor", "-o", "json"}, Env: env, Dir: t.TempDir()})
	var all []DoctorFinding
	if err := json.Unmarshal([]byte(ran.Stdout), &all); err != nil {
		t.Fatalf("%v: %s%s", err, ran.Stdout, ran.Stderr)
	}
	found = make(map[string]DoctorFinding)
	for _, s := range all {
		found[s.State+" "+s.Of] = s
	}
	return ran.Code, found
}
