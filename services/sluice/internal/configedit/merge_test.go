package configedit_test

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-mesh/sluice/services/sluice/internal/configedit"
)

// A clientChange is a modification that a client or a person makes to an entry after the change.
type clientChange struct {
	name   string
	layout configedit.Layout
	// before is the file before the change, now is the file before undo, and the field want is the file after undo. If
	// the field want is empty, undo must not modify the entry.
	before, now, want string
	// forced is the file after undo with Force.
	forced string
}

const (
	ourJSON   = `{"m": {"a": {"command": "sluice", "args": ["stdio"], "timeout": 9}}}`
	theirJSON = `{"m": {"a": {"timeout": 9,"command":"npx", "args": [ "x" ], "env": {"K": "v"}}}}`
	theirHTTP = `{"m": {"a": {"url": "https://a", "timeout": 9}}}`
	ourTOML   = "[m.a]\ncommand = \"sluice\"\nargs = [\"stdio\"]\n"
	theirTOML = "[m.a]\ncommand = \"npx\"\n"
	ourYAML   = "m:\n  a:\n    command: sluice\n    args:\n      - stdio\n"
	theirYAML = "m:\n  a:\n    command: npx # c\n    args: [x]\n"
)

func clientChanges() []clientChange {
	j, to, y := jsonLayout, tomlLayout, yamlLayout
	return []clientChange{
		{"other order", j, theirJSON, `{"m": {"a": {"args": ["stdio"], "timeout": 9, "command": "sluice"}}}`, theirJSON, theirJSON},
		{"default members", j, theirJSON, `{"m": {"a": {"type": "stdio", "command": "sluice", "args": ["stdio"], "timeout": 9, "env": {}, "disabled": false}}}`, theirJSON, theirJSON},
		{"default members of a URL", j, theirHTTP, `{"m": {"a": {"type": "stdio", "command": "sluice", "args": ["stdio"], "timeout": 9}}}`, theirHTTP, theirHTTP},
		{"a member of the client is new", j, theirJSON, `{"m": {"a": {"command": "sluice", "args": ["stdio"], "timeout": 9, "allow": ["t"]}}}`, `{"m": {"a": {"timeout": 9,"command":"npx", "args": [ "x" ], "env": {"K": "v"}, "allow": ["t"]}}}`, theirJSON},
		{"a member of the client is changed", j, theirJSON, `{"m": {"a": {"command": "sluice", "args": ["stdio"], "timeout": 5}}}`, `{"m": {"a": {"timeout": 5,"command":"npx", "args": [ "x" ], "env": {"K": "v"}}}}`, theirJSON},
		{"a member of the client is removed", j, theirJSON, `{"m": {"a": {"command": "sluice", "args": ["stdio"]}}}`, `{"m": {"a": {"command":"npx", "args": [ "x" ], "env": {"K": "v"}}}}`, theirJSON},
		{"other arguments", j, theirJSON, `{"m": {"a": {"command": "sluice", "args": ["stdio", "-v"], "timeout": 9}}}`, "", theirJSON},
		{"an environment", j, theirJSON, `{"m": {"a": {"command": "sluice", "args": ["stdio"], "timeout": 9, "env": {"X": "1"}}}}`, "", theirJSON},
		{"another type", j, theirJSON, `{"m": {"a": {"type": "http", "command": "sluice", "args": ["stdio"], "timeout": 9}}}`, "", theirJSON},
		{"no command", j, theirJSON, `{"m": {"a": {"args": ["stdio"], "timeout": 9}}}`, "", theirJSON},
		{"not a map", j, theirJSON, `{"m": {"a": "x"}}`, "", theirJSON},
		{"a comment", j, theirJSON, `{"m": {"a": {"command": "sluice", "args": ["stdio"], /* mine */ "timeout": 9}}}`, "", theirJSON},
		{"restored by hand", j, theirJSON, `{"m": {"a": {"command": "npx", "args": ["x"], "env": {"K": "v"}, "timeout": 3}}}`, `{"m": {"a": {"command": "npx", "args": ["x"], "env": {"K": "v"}, "timeout": 3}}}`, theirJSON},
		{"TOML, a member of the client", to, theirTOML, ourTOML + "allow = [\"t\"]\n", "[m.a]\ncommand = \"npx\"\nallow = [\"t\"]\n", theirTOML},
		{"TOML, other arguments", to, theirTOML, "[m.a]\ncommand = \"sluice\"\nargs = [\"x\"]\n", "", theirTOML},
		{"YAML, default members", y, theirYAML, ourYAML + "    env: {}\n", theirYAML, theirYAML},
		{"YAML, a member of the client and a comment in the old value", y, theirYAML, ourYAML + "    allow: t\n", "", theirYAML},
	}
}

// A client or a person modifies an entry after the change. If the entry still has the command and the arguments that
// the change wrote, undo restores it and keeps the members that only concern the client.
func TestUndoWith_MergesWhatAClientChanged(t *testing.T) {
	t.Parallel()
	options := configedit.UndoOptions{
		Owned: func(m string) bool { return slices.Contains([]string{"type", "command", "args", "env", "url"}, m) },
		Default: func(m string, v *configedit.Node) bool {
			return m == "type" && v.Text == "stdio" || v.Kind == configedit.Bool && v.Text == "false" || v.Kind == configedit.Map && len(v.Members) == 0
		},
	}
	for _, c := range clientChanges() {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			value := configedit.Object{{Name: "command", Value: "sluice"}, {Name: "args", Value: []string{"stdio"}}}
			if c.layout == jsonLayout {
				value = append(value, configedit.Field{Name: "timeout", Value: 9})
			}
			change, err := configedit.Apply(c.layout, []byte(c.before), configedit.Edit{Path: []string{"m", "a"}, Value: value})
			if err != nil {
				t.Fatal(err)
			}
			m := storedManifest(t, change)
			checkUndo(t, m, options, c.now, c.want)
			options := options
			options.Force = true
			checkUndo(t, m, options, c.now, c.forced)
			options.Leave = func([]string) bool { return true }
			checkUndo(t, m, options, c.now, c.now)
		})
	}
}

// checkUndo undoes a change twice. If the parameter want is empty, the entry must stay as it is, and the result must
// contain the entry's old value.
func checkUndo(t *testing.T, m *configedit.Manifest, o configedit.UndoOptions, now, want string) {
	t.Helper()
	undone, err := m.UndoWith([]byte(now), o)
	if err != nil {
		t.Fatal(err)
	}
	if want == "" {
		want = now
		if len(undone.Kept) != 1 || undone.Kept[0].Old.Get("command").Text != "npx" || undone.Kept[0].Ours.Get("command").Text != "sluice" || undone.Kept[0].OldSource == "" {
			t.Errorf("kept: %+v", undone.Kept)
		}
	} else if len(undone.Kept) > 0 {
		t.Errorf("kept: %+v", undone.Kept)
	}
	if diff := cmp.Diff(want, string(undone.Data)); diff != "" {
		t.Errorf("force %t (-want +got):\n%s", o.Force, diff)
	}
	again, err := m.UndoWith(undone.Data, o)
	if err != nil || string(again.Data) != string(undone.Data) || len(again.Kept) != len(undone.Kept) {
		t.Errorf("force %t, a second undo: %+v, %v", o.Force, again, err)
	}
}
