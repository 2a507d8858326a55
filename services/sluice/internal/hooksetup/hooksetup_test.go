package hooksetup_test

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-mesh/sluice/services/sluice/internal/hooksetup"
)

const program = "/opt/sluice/bin/sluice"

// newTarget returns the settings file of a client, with the given content, and a data directory. If the content is the
// constant missing, the file does not exist.
func newTarget(t *testing.T, client, content string) (target hooksetup.Target, data string) {
	t.Helper()
	dir := t.TempDir()
	target = hooksetup.Target{Client: client, Path: filepath.Join(dir, "client", "settings.json")}
	if content != missing {
		if err := errors.Join(os.Mkdir(filepath.Dir(target.Path), 0o700), os.WriteFile(target.Path, []byte(content), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	return target, filepath.Join(dir, "data")
}

// missing stands for a file that does not exist.
const missing = "\x00"

func content(t *testing.T, path string) string {
	t.Helper()
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return missing
	}
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

func install(t *testing.T, target hooksetup.Target, data, program string) (changed bool) {
	t.Helper()
	changed, err := target.Install(t.Context(), data, program)
	if err != nil {
		t.Fatal(err)
	}
	return changed
}

func remove(t *testing.T, target hooksetup.Target, data string) hooksetup.Removal {
	t.Helper()
	done, err := target.Remove(t.Context(), data)
	if err != nil {
		t.Fatal(err)
	}
	return done
}

// checkRegistered checks that each event of a target has a command that starts the program. If the parameter program is
// empty, it checks that no event has a command.
func checkRegistered(t *testing.T, target hooksetup.Target, program string) {
	t.Helper()
	commands, err := target.Registered()
	if err != nil || len(commands) != len(target.Events()) {
		t.Fatalf("commands %q for %q, %v", commands, target.Events(), err)
	}
	for i, command := range commands {
		starts := strings.HasPrefix(command, program+" hook "+target.Client)
		if program == "" && command != "" || program != "" && !starts {
			t.Errorf("%s: the command is %q, want %q", target.Events()[i], command, program)
		}
	}
}

// records returns the records in a data directory.
func records(t *testing.T, data string) []string {
	t.Helper()
	paths, err := hooksetup.Records(data)
	if err != nil {
		t.Fatal(err)
	}
	return paths
}

// others contains settings with hooks of other programs. It has an item for each event for which Sluice's hook is
// registered.
const others = `{
    "theme": "dark",   "hooks": {
        "PreToolUse": [{"matcher": "Bash", "hooks": [{"type": "command", "command": "lint"}]}],
        "PermissionRequest": [ {"hooks": [{"type": "command", "command": "ring"}]} ],
        "BeforeTool": [
            {"hooks": [{"type": "command", "command": "sluice hook gemini", "timeout": 1}, {"type": "command", "command": "lint"}]}
        ]
    }
}
`

func TestRemove_RestoresTheFileThatInstallChanged(t *testing.T) {
	t.Parallel()
	for _, client := range []string{"claude-code", "codex", "gemini"} {
		for name, before := range map[string]string{
			"missing": missing, "empty object": "{}", "empty list": `{"hooks": {"PreToolUse": [], "BeforeTool": [] }}`,
			"other settings": "{\r\n\t\"theme\": \"dark\"\r\n}", "hooks of others": others,
		} {
			t.Run(client+"/"+name, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) { checkRestored(t, client, before) })
			})
		}
	}
}

func checkRestored(t *testing.T, client, before string) {
	t.Helper()
	target, data := newTarget(t, client, before)
	checkRegistered(t, target, "")
	if !install(t, target, data, program) {
		t.Error("the first Install changes nothing")
	}
	checkRegistered(t, target, program)
	after := content(t, target.Path)
	for _, theirs := range []string{`"theme": "dark"`, `"lint"`, `"ring"`} {
		if strings.Count(after, theirs) != strings.Count(before, theirs) {
			t.Errorf("%s is lost:\n%s", theirs, after)
		}
	}
	if install(t, target, data, program) || content(t, target.Path) != after || len(records(t, data)) != 1 {
		t.Errorf("the second Install changes the file, or its record: %q", records(t, data))
	}
	want := hooksetup.Removal{Found: true, Exact: before != missing, Deleted: before == missing}
	if got := remove(t, target, data); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if diff := cmp.Diff(before, content(t, target.Path)); diff != "" {
		t.Errorf("the file is not as before (-want +got):\n%s", diff)
	}
	checkRegistered(t, target, "")
	if got := remove(t, target, data); got != (hooksetup.Removal{}) || len(records(t, data)) != 0 {
		t.Errorf("the second Remove finds %+v and the records %q", got, records(t, data))
	}
}

// If the item with the earlier path stayed, the hook would run twice, or a client would start a program that does not
// exist.
func TestInstall_ReplacesAnEarlierPathOfTheProgram(t *testing.T) {
	t.Parallel()
	for _, client := range []string{"claude-code", "codex", "gemini"} {
		synctest.Test(t, func(t *testing.T) {
			target, data := newTarget(t, client, others)
			install(t, target, data, "/old/sluice")
			if !install(t, target, data, program) {
				t.Errorf("%s: the second Install changes nothing", client)
			}
			checkRegistered(t, target, program)
			if after := content(t, target.Path); strings.Contains(after, "/old/sluice") || strings.Count(after, program) != len(target.Events()) {
				t.Errorf("%s: %s", client, after)
			}
			if got := remove(t, target, data); !got.Found {
				t.Errorf("%s: %+v", client, got)
			}
			checkSame(t, others, content(t, target.Path))
		})
	}
}

func checkSame(t *testing.T, want, got string) {
	t.Helper()
	var a, b any
	if err := errors.Join(json.Unmarshal([]byte(want), &a), json.Unmarshal([]byte(got), &b)); err != nil {
		t.Fatalf("%v in %s", err, got)
	}
	if diff := cmp.Diff(a, b); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestRemove_KeepsWhatOthersChangedSinceInstall(t *testing.T) {
	t.Parallel()
	for _, client := range []string{"claude-code", "codex", "gemini"} {
		synctest.Test(t, func(t *testing.T) {
			target, data := newTarget(t, client, others)
			install(t, target, data, program)
			changed := strings.NewReplacer(`"dark"`, `"light"`, `"lint"`, `"lint --all"`)
			if err := os.WriteFile(target.Path, []byte(changed.Replace(content(t, target.Path))), 0o600); err != nil {
				t.Fatal(err)
			}
			if got, want := remove(t, target, data), (hooksetup.Removal{Found: true}); got != want {
				t.Errorf("%s: %+v, want %+v", client, got, want)
			}
			checkSame(t, changed.Replace(others), content(t, target.Path))
			if len(records(t, data)) != 0 {
				t.Errorf("%s: the record stays", client)
			}
		})
	}
}

// A person may delete the settings file or the hook before Remove is called. In that case, Remove only deletes its
// record.
func TestRemove_ForgetsAHookThatIsGone(t *testing.T) {
	t.Parallel()
	for name, gone := range map[string]string{"file": missing, "hook": `{"theme": "dark"}`} {
		synctest.Test(t, func(t *testing.T) {
			target, data := newTarget(t, "claude-code", others)
			install(t, target, data, program)
			err := os.Remove(target.Path)
			if gone != missing {
				err = errors.Join(err, os.WriteFile(target.Path, []byte(gone), 0o600))
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := remove(t, target, data); got != (hooksetup.Removal{}) || content(t, target.Path) != gone || len(records(t, data)) != 0 {
				t.Errorf("%s: %+v, file %q, records %q", name, got, content(t, target.Path), records(t, data))
			}
		})
	}
}

func TestTarget_RefusesSettingsThatItCantEdit(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"{", "[]", "null", `{"hooks": []}`, `{"hooks": {"PreToolUse": {}}}`, `{"hooks": {"PreToolUse": "x"}}`, `{"hooks": 1, "hooks": {}}`} {
		target, data := newTarget(t, "claude-code", text)
		if changed, err := target.Install(t.Context(), data, program); err == nil || changed {
			t.Errorf("Install accepts %q: %t", text, changed)
		}
		if got := content(t, target.Path); got != text || len(records(t, data)) != 0 {
			t.Errorf("Install changes %q to %q, with the records %q", text, got, records(t, data))
		}
	}
}

// A repository may contain a link in .claude that leads to one of the person's files outside the project.
func TestInstall_RefusesALinkOutOfTheProject(t *testing.T) {
	t.Parallel()
	outside := filepath.Join(t.TempDir(), "settings.json")
	target, data := newTarget(t, "claude-code", missing)
	target.Project = filepath.Dir(target.Path)
	if err := errors.Join(os.WriteFile(outside, []byte("{}"), 0o600), os.Mkdir(target.Project, 0o700), os.Symlink(outside, target.Path)); err != nil {
		t.Fatal(err)
	}
	if _, err := target.Install(t.Context(), data, program); err == nil || !strings.Contains(err.Error(), "outside") || content(t, outside) != "{}" {
		t.Errorf("%v, and the file has %q", err, content(t, outside))
	}
}

// The timeouts have the units that the clients use. If the hook fails, Claude Code runs the call unless onFailure is
// "block".
func TestInstall_WritesTheFormOfTheClient(t *testing.T) {
	t.Parallel()
	for client, want := range map[string]map[string]any{
		"claude-code": {"type": "command", "timeout": 300.0, "onFailure": "block"},
		"codex":       {"type": "command", "timeout": 300.0},
		"gemini":      {"type": "command", "timeout": 300000.0, "name": "sluice"},
	} {
		synctest.Test(t, func(t *testing.T) {
			target, data := newTarget(t, client, missing)
			install(t, target, data, program)
			var got struct {
				Hooks map[string][]struct {
					Hooks []map[string]any `json:"hooks"`
				} `json:"hooks"`
			}
			if err := json.Unmarshal([]byte(content(t, target.Path)), &got); err != nil || len(got.Hooks) != len(target.Events()) {
				t.Fatalf("%s: %+v, %v", client, got, err)
			}
			for _, event := range target.Events() {
				items := got.Hooks[event]
				if len(items) != 1 || len(items[0].Hooks) != 1 {
					t.Fatalf("%s: %s has %+v", client, event, items)
				}
				delete(items[0].Hooks[0], "command")
				if diff := cmp.Diff(want, items[0].Hooks[0]); diff != "" {
					t.Errorf("%s: %s (-want +got):\n%s", client, event, diff)
				}
			}
		})
	}
}

// Clients run the command in a shell. The shell must read each path as one word.
func TestInstall_QuotesThePathOfTheProgramForAShell(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"/a b/sluice", "/it's/sluice", "/$HOME/`x`/sluice", `/"/sluice`, "/a;b&c|d>e/sluice", "/~*?[]/sluice"} {
		var command string
		synctest.Test(t, func(t *testing.T) {
			target, data := newTarget(t, "claude-code", missing)
			install(t, target, data, path)
			commands, err := target.Registered()
			if err != nil {
				t.Fatal(err)
			}
			command = commands[0]
		})
		out, err := exec.CommandContext(t.Context(), "sh", "-c", `printf '%s\n' `+command).CombinedOutput()
		words := strings.Split(string(out), "\n")
		if err != nil || len(words) < 3 || words[0] != path || words[1] != "hook" || words[2] != "claude-code" {
			t.Errorf("the shell reads %q as %q, %v", command, words, err)
		}
	}
}

func TestIsHook_AcceptsOnlyTheHookOfTheClient(t *testing.T) {
	t.Parallel()
	for command, want := range map[string]bool{
		"sluice hook codex": true, "/opt/sluice hook codex": true, "'/a b/sluice' hook codex": true,
		`"C:\Program Files\sluice.exe" hook codex`: true, "/opt/sluice-linux-amd64 hook codex ": true,
		"": false, "sluice": false, "sluice hook": false, "sluice hook gemini": false, "sluice hook codexes": false,
		"/opt/other hook codex": false, "sluice stdio": false, "echo sluice hook codex; sluice hook gemini": false,
	} {
		if got := hooksetup.IsHook(command, "codex"); got != want {
			t.Errorf("%q: %t", command, got)
		}
	}
}
