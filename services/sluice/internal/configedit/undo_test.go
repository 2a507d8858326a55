package configedit_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-mesh/sluice/services/sluice/internal/configedit"
)

// A laterChange is a modification that another program makes after the change.
type laterChange struct {
	name   string
	layout configedit.Layout
	before string
	// The test replaces the text old with the text new in the edited file.
	old, new string
	// after is the content after undo, or empty if it is not compared.
	after string
	kept  []string
	gone  []string
}

func laterChanges() []laterChange {
	const j, o, y = "{\n  \"m\": {\n    \"a\": {\n      \"x\": 1\n    }\n  }\n}\n", "[m.a] # c\nx = 1\n[m.a.y]\nz = 2\n", "m:\n  a:\n    x: |\n      text\n"
	const l = "m:\n- name: a\n  x: 1\n"
	return []laterChange{
		{"JSON, elsewhere", jsonLayout, j, "{\n  \"m\"", "{\n  \"n\": 1,\n  \"m\"", strings.Replace(j, "{\n", "{\n  \"n\": 1,\n", 1), nil, nil},
		{"JSON, our entry", jsonLayout, j, `"/bin/sluice",
      "args": ["stdio", "--server", "a"],
      "env": {
        "X_1": "é\"\\\n"
      }
    },`, `1},`, "{\n  \"m\": {\n    \"a\": {\n      \"command\": 1}\n  }\n}\n", []string{"m.a: it was changed"}, nil},
		{"TOML, elsewhere", tomlLayout, o, "[m.new]", "[n]\n[m.new]", o + "\n[n]\n", nil, nil},
		{"TOML, our entry", tomlLayout, o, "[m.a]", "[m.b]", "[m.b] # c\n" + tomlValue + "\n", nil, []string{"m.a"}},
		{"YAML, elsewhere", yamlLayout, y, "m:\n", "n: 1\nm:\n", "n: 1\n" + y, nil, nil},
		{"YAML, our entry", yamlLayout, y, "/bin/sluice", "x", "", []string{"m.a: it was changed"}, nil},
		{"list, elsewhere", listLayout, l, "m:\n", "n: 1\nm:\n", "n: 1\n" + l, nil, nil},
	}
}

// TestUndo_KeepsWhatOthersChanged replaces the entry named a and inserts an entry named new. Then another program
// modifies the file.
func TestUndo_KeepsWhatOthersChanged(t *testing.T) {
	t.Parallel()
	for _, c := range laterChanges() {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			edits := []configedit.Edit{{Path: []string{"m", "a"}, Value: server("")}, {Path: []string{"m", "new"}, Value: server("")}}
			if c.layout == listLayout {
				edits[0].Value, edits[1].Value = server("a"), server("new")
			}
			change, err := configedit.Apply(c.layout, []byte(c.before), edits...)
			if err != nil {
				t.Fatal(err)
			}
			now := strings.Replace(string(change.After), c.old, c.new, 1)
			if now == string(change.After) {
				t.Fatalf("the other program changes nothing in:\n%s", now)
			}
			undone, err := storedManifest(t, change).Undo([]byte(now))
			if err != nil || undone.Exact {
				t.Fatalf("%+v, %v", undone, err)
			}
			var kept []string
			for _, k := range undone.Kept {
				kept = append(kept, strings.Join(k.Path, ".")+": "+k.Reason)
			}
			if diff := cmp.Diff(c.kept, kept); diff != "" {
				t.Errorf("kept (-want +got):\n%s", diff)
			}
			var gone []string
			for _, k := range undone.Gone {
				gone = append(gone, strings.Join(k.Path, "."))
			}
			if diff := cmp.Diff(c.gone, gone); diff != "" {
				t.Errorf("gone (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(c.after, string(undone.Data)); c.after != "" && diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			again, err := storedManifest(t, change).Undo(undone.Data)
			if err != nil || string(again.Data) != string(undone.Data) {
				t.Errorf("a second undo changes the file: %v", err)
			}
		})
	}
}

// storedManifest returns the manifest of a change as it is after it was stored as JSON and read again.
func storedManifest(t *testing.T, change *configedit.Change) *configedit.Manifest {
	t.Helper()
	m, err := change.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	stored, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	var read configedit.Manifest
	if err := json.Unmarshal(stored, &read); err != nil {
		t.Fatal(err)
	}
	return &read
}

// A client reads the file after the change and writes it with different formatting. All entries nevertheless get their
// old values.
func TestUndo_AfterTheFileWasReformatted(t *testing.T) {
	t.Parallel()
	before := `{"n": 1.50, "m": {"a": {"x": [1, {"y": null}]}}, "p": {"q": {}}}`
	change, err := configedit.Apply(jsonLayout, []byte(before), configedit.Edit{Path: []string{"m", "a"}, Value: server("")},
		configedit.Edit{Path: []string{"p", "q", "new"}, Value: server("")}, configedit.Edit{Path: []string{"r", "new"}, Value: server("")})
	if err != nil {
		t.Fatal(err)
	}
	var value any
	if err := json.Unmarshal(change.After, &value); err != nil {
		t.Fatal(err)
	}
	now, err := json.MarshalIndent(value, "", "\t")
	if err != nil {
		t.Fatal(err)
	}
	undone, err := storedManifest(t, change).Undo(now)
	if err != nil || undone.Exact || len(undone.Kept) > 0 {
		t.Fatalf("%+v, %v", undone, err)
	}
	var got, want any
	if err := json.Unmarshal(undone.Data, &got); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(before), &want); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s\n%s", diff, undone.Data)
	}
}

func TestUndo_RefusesADamagedManifest(t *testing.T) {
	t.Parallel()
	change, err := configedit.Apply(jsonLayout, []byte("{}"), configedit.Edit{Path: []string{"m", "a"}, Value: server("")})
	if err != nil {
		t.Fatal(err)
	}
	for name, damage := range map[string]func(*configedit.Manifest){
		"version":        func(m *configedit.Manifest) { m.Version = 2 },
		"sealed":         func(m *configedit.Manifest) { m.Old = []byte("\x00") },
		"number":         func(m *configedit.Manifest) { m.Ours = nil },
		"content before": func(m *configedit.Manifest) { m.Before = m.After },
		"range": func(m *configedit.Manifest) {
			m.Old = []byte(strings.Replace(string(m.Old), `"end":`, `"end":9`, 1))
		},
	} {
		m := storedManifest(t, change)
		damage(m)
		if undone, err := m.Undo(change.After); err == nil {
			t.Errorf("%s: %+v", name, undone)
		}
	}
}
