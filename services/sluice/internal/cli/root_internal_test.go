package cli

import (
	"bytes"
	"io"
	"os/exec"
	"strings"
	"testing"
)

func TestSelfName(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, program, env string
		inPath             bool
		want               string
	}{
		{"found by PATH", "sluice", "", true, "sluice"},
		{"by a relative path", "bin/sluice", "", true, "bin/sluice"},
		{"in this folder", "./sluice", "", false, "./sluice"},
		{"by a whole path, as services are", "/usr/local/bin/sluice", "", true, "sluice"},
		{"by a whole path, and not in PATH", "/opt/my tools/sluice", "", false, "'/opt/my tools/sluice'"},
		{"as the environment says", "sluice", "docker compose run --rm sluice", false, "docker compose run --rm sluice"},
		{"not told", "", "", false, "sluice"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			env := func(name string) (string, bool) { return tt.env, name == "SLUICE_COMMAND" && tt.env != "" }
			look := func(string) (string, error) {
				if tt.inPath {
					return "/usr/local/bin/sluice", nil
				}
				return "", exec.ErrNotFound
			}
			if got := selfName(tt.program, env, look); got != tt.want {
				t.Errorf("selfName(%q) = %q, want %q", tt.program, got, tt.want)
			}
		})
	}
}

func TestMessages_NameTheProgramAsItWasCalled(t *testing.T) {
	t.Parallel()
	const self = "docker compose run --rm sluice"
	tests := []struct {
		name string
		args []string
		want string
	}{
		{"usage", []string{"call", "--help"}, "Usage:\n  " + self + " call SERVER TOOL"},
		{"examples", []string{"call", "--help"}, "\n  " + self + " call demo list_notes\n"},
		{"the first step", []string{"--help"}, "Start with:  " + self + " up"},
		{"a mistake", []string{"policy", "explain"}, "see `" + self + " policy explain --help`"},
		{"no token", []string{"status", "--data", t.TempDir()}, "start the mesh with `" + self + " up`"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			root := (&tool{self: self, out: &out, errOut: io.Discard}).root()
			root.SetArgs(tt.args)
			errText := ""
			if err := root.ExecuteContext(t.Context()); err != nil {
				errText = err.Error()
			}
			if got := out.String() + errText; !strings.Contains(got, tt.want) {
				t.Errorf("the command printed %q, want %q", got, tt.want)
			}
		})
	}
}
