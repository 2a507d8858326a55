package clientconfig_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-mesh/sluice/services/sluice/internal/clientconfig"
	"github.com/sluice-mesh/sluice/services/sluice/internal/configedit"
)

func publicFile(t *testing.T, name, client string) (clientconfig.File, []byte) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", "public", name))
	if err != nil {
		t.Fatal(err)
	}
	c, ok := clientconfig.Find(client)
	if !ok {
		t.Fatalf("%s is not known", client)
	}
	return c.Files(systems()["linux"], "")[0], data
}

// The test changes the entries of publicly available configurations so that they start `sluice stdio`. For each entry
// that can't be changed, there is the expected reason. Comments stay, and undo restores the exact bytes.
func TestPublic_EntriesAreWrappedOrHaveAReason(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		file, client string
		// reasons maps the name of each entry to a part of the reason why the entry can't be changed, or to "" if it
		// can be changed.
		reasons map[string]string
	}{
		{"claude-desktop-docker.json", "claude-desktop", map[string]string{
			"brave-search": "", "filesystem": "", "github": "", "gdrive": "", "google-workspace-mcp": "",
		}},
		{"vscode-inputs.json", "vscode", map[string]string{
			"obsidianLocalRest": "refers to ${input:obsidian-api-key}, which only the client can resolve",
		}},
		{"cursor-relative.json", "cursor", map[string]string{
			"docs": "has a path that depends on the folder of the client", "exa": "",
		}},
		{"codex-comments.toml", "codex", map[string]string{"specd": "has a path that depends on the folder of the client"}},
	} {
		t.Run(c.file, func(t *testing.T) {
			t.Parallel()
			f, data := publicFile(t, c.file, c.client)
			entries, err := f.Entries(data)
			if err != nil {
				t.Fatal(err)
			}
			if len(entries) != len(c.reasons) {
				t.Errorf("%d entries instead of %d", len(entries), len(c.reasons))
			}
			for _, e := range entries {
				if part, ok := c.reasons[e.Name]; !ok || (part == "") != (e.Reason == "") || !strings.Contains(e.Reason, part) {
					t.Errorf("%s: reason %q instead of %q", e.Name, e.Reason, part)
				}
			}
			after := wrapAll(t, f, entries, data)
			for line := range strings.Lines(string(data)) {
				if strings.HasPrefix(line, "#") && !strings.Contains(string(after), line) {
					t.Errorf("the comment %q is missing", line)
				}
			}
		})
	}
}

// The file can't be parsed. Both Entries and Apply return the position of the first invalid byte, and Apply writes
// nothing.
func TestPublic_AFileThatCannotBeParsedIsRefused(t *testing.T) {
	t.Parallel()
	f, data := publicFile(t, "claude-desktop-hash.json", "claude-desktop")
	_, err := f.Entries(data)
	invalid, ok := errors.AsType[*configedit.EditError](err)
	if !ok || invalid.Line != 1 || invalid.Column != 1 {
		t.Errorf("Entries: %v", err)
	}
	change, err := configedit.Apply(f.Layout, data, f.StdioEdit("learn", nil, "/opt/sluice", []string{"stdio"}))
	if refused, ok := errors.AsType[*configedit.EditError](err); !ok || change != nil {
		t.Errorf("Apply: %v", err)
	} else if diff := cmp.Diff(invalid.Message, refused.Message); diff != "" {
		t.Error(diff)
	}
}
