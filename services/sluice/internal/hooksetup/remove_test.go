package hooksetup_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/internal/hosttools"
	"github.com/sluice-mesh/sluice/services/sluice/internal/hooksetup"
)

// The client or the person changes another setting between install and remove, so that the file can't be restored to the
// byte. Nothing that install has added stays.
func TestRemove_LeavesNothingInAChangedFile(t *testing.T) {
	t.Parallel()
	for _, client := range hosttools.Clients() {
		for _, before := range []string{"{}", "{\n  \"theme\": \"dark\"\n}\n", `{"hooks": {}, "theme": "dark"}`, `{"hooks": {"Stop": []}, "theme": "dark"}`} {
			t.Run(client+" "+before, func(t *testing.T) {
				t.Parallel() // the writer waits for clients that rewrite their files
				checkRemove(t, client, before)
			})
		}
	}
}

func checkRemove(t *testing.T, client, before string) {
	t.Helper()
	dir := t.TempDir()
	target := hooksetup.Target{Client: client, Path: filepath.Join(dir, "settings.json"), Config: filepath.Join(dir, "sluice.yaml")}
	change := func(content string) string {
		return strings.Replace(content, "{", `{"mine": true`+comma(content), 1)
	}
	if err := os.WriteFile(target.Path, []byte(before), 0o600); err != nil {
		t.Fatal(err)
	}
	if changed, err := target.Install(t.Context(), dir, "/usr/bin/sluice"); err != nil || !changed {
		t.Fatal(changed, err)
	}
	installed, err := os.ReadFile(target.Path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(target.Path, []byte(change(string(installed))), 0o600); err != nil {
		t.Fatal(err)
	}
	if done, err := target.Remove(t.Context(), dir); err != nil || !done.Found || done.Exact {
		t.Fatalf("%+v, %v", done, err)
	}
	after, err := os.ReadFile(target.Path)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := squeezed(string(after)), squeezed(change(before)); got != want {
		t.Errorf("the file is %s, want %s", got, want)
	}
}

// comma returns a comma if the object is not empty.
func comma(object string) string {
	if squeezed(object) == "{}" {
		return ""
	}
	return ","
}

func squeezed(text string) string { return strings.Join(strings.Fields(text), "") }
