package hooksetup_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/sluice-mesh/sluice/services/internal/hosttools"
	"github.com/sluice-mesh/sluice/services/sluice/internal/hooksetup"
)

// The client or the person changes another setting between Install and Remove, so the exact bytes of the file can't be
// restored. Nothing that Install has added stays.
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

// The first install creates the file, other programs add content to it, and a second install replaces the path of the
// program. After the second install, the added content must not count as part of the hook, so Remove keeps it.
func TestRemove_KeepsAFileThatOthersChangedBetweenInstalls(t *testing.T) {
	t.Parallel()
	for _, client := range hosttools.Clients() {
		synctest.Test(t, func(t *testing.T) {
			target, data := newTarget(t, client, missing)
			install(t, target, data, "/old/sluice")
			changed := strings.Replace(content(t, target.Path), "{", `{"mine": true,`, 1)
			if err := os.WriteFile(target.Path, []byte(changed), 0o600); err != nil {
				t.Fatal(err)
			}
			install(t, target, data, program)
			if got, want := remove(t, target, data), (hooksetup.Removal{Found: true}); got != want {
				t.Errorf("%s: %+v, want %+v", client, got, want)
			}
			if got := squeezed(content(t, target.Path)); got != `{"mine":true}` {
				t.Errorf("%s: the file is %q", client, got)
			}
		})
	}
}

// If only Sluice has changed the file, Remove deletes the file even after a second install.
func TestRemove_DeletesAFileThatTwoInstallsWrote(t *testing.T) {
	t.Parallel()
	for _, client := range hosttools.Clients() {
		synctest.Test(t, func(t *testing.T) {
			target, data := newTarget(t, client, missing)
			install(t, target, data, "/old/sluice")
			install(t, target, data, program)
			if got, want := remove(t, target, data), (hooksetup.Removal{Found: true, Deleted: true}); got != want || content(t, target.Path) != missing {
				t.Errorf("%s: %+v, want %+v, and the file is %q", client, got, want, content(t, target.Path))
			}
		})
	}
}

// Remove reports that the file has the same bytes as before Install only if this is true. After a second install, white
// space may remain that was not there before.
func TestRemove_IsExactOnlyIfTheBytesAreThoseBeforeInstall(t *testing.T) {
	t.Parallel()
	for _, client := range hosttools.Clients() {
		for _, before := range []string{"{}", "{\n  \"theme\": \"dark\"\n}\n", others} {
			synctest.Test(t, func(t *testing.T) {
				target, data := newTarget(t, client, before)
				install(t, target, data, "/old/sluice")
				install(t, target, data, program)
				got := remove(t, target, data)
				if same := content(t, target.Path) == before; got.Exact != same {
					t.Errorf("%s %q: %+v, and the file is %q", client, before, got, content(t, target.Path))
				}
			})
		}
	}
}
