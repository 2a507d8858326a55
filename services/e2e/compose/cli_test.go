//go:build compose

package compose_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
)

// cliStories runs the commands of deploy/README.md in the command line's container.
func cliStories(t *testing.T, d *deployment) {
	t.Run("checks the configuration", func(t *testing.T) {
		got := d.cli(t, "config", "check")
		for _, want := range []string{"/etc/sluice/sluice.yaml", "agent (agent)", "operator (operator)", "demo"} {
			if !strings.Contains(got, want) {
				t.Errorf("%q is not in %s", want, got)
			}
		}
	})
	t.Run("suggests commands that work in the container", func(t *testing.T) {
		_, err := d.tryRun(t, commandTime, "docker", "compose", "run", "--rm", "sluice", "call", "demo", "delete_note", "--arg", "id=note-1")
		if err == nil {
			t.Fatal("a denied call succeeded")
		}
		const suggested = ": docker compose run --rm sluice decisions show "
		_, id, found := strings.Cut(err.Error(), suggested)
		if !found {
			t.Fatalf("the command prints %v, want %q", err, suggested)
		}
		id, _, _ = strings.Cut(id, "\n")
		if got := d.cli(t, "decisions", "show", strings.TrimSpace(id)); !strings.Contains(got, "delete_note") {
			t.Errorf("the suggested command shows %s", got)
		}
	})
	t.Run("is never pulled, nor is setup", func(t *testing.T) {
		var file struct {
			Services map[string]struct {
				Image  string `json:"image"`
				Policy string `json:"pull_policy"`
			} `json:"services"`
		}
		if err := json.Unmarshal([]byte(d.compose(t, "--profile", "cli", "config", "--format", "json")), &file); err != nil {
			t.Fatal(err)
		}
		own := 0
		for name, service := range file.Services {
			if service.Image == d.image(t) {
				own++
			}
			if service.Image != "" && name != "jaeger" && service.Policy != "never" {
				t.Errorf("%s is pulled: %s", name, service.Policy)
			}
		}
		if own != 10 {
			t.Errorf("%d services of the mesh's image, want 10", own)
		}
	})
	t.Run("a relative configuration folder is relative to deploy", func(t *testing.T) {
		dir, err := filepath.Rel(filepath.Join(d.root, "deploy"), d.config)
		if err != nil {
			t.Fatal(err)
		}
		run := []string{"CONFIG_DIR=" + dir, "docker", "compose", "run", "--rm", "--no-deps", "sluice", "config", "check"}
		if got, err := d.tryRun(t, commandTime, "env", run...); err != nil || !strings.Contains(got, "everything") {
			t.Errorf("the command prints %s, %v", got, err)
		}
		run[0] = "CONFIG_DIR=not-there"
		if _, err := d.tryRun(t, commandTime, "env", run...); err == nil || !strings.Contains(err.Error(), "deploy/not-there") {
			t.Errorf("with a folder that does not exist: %v", err)
		}
	})
}

func (d *deployment) image(t *testing.T) string {
	t.Helper()
	return strings.TrimSpace(d.compose(t, "config", "--images", "demo"))
}
