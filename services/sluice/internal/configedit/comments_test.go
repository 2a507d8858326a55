package configedit_test

import (
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/sluice/internal/configedit"
)

type addedComment struct {
	name   string
	layout configedit.Layout
	before string
	// The test replaces the text old with the text new in the edited file. This adds a comment.
	old, new string
	// removed is true if undo removes the entry that the edit added but keeps the comment.
	removed bool
}

func addedComments() []addedComment {
	const j, o = "{\n  \"m\": {\n    \"b\": 1\n  }\n}\n", "[m.b]\nx = 1\n"
	const y, l = "m:\n  b:\n    x: 1\n", "m:\n- name: b\n  x: 1\n"
	const ours = `"/bin/sluice"`
	return []addedComment{
		{"JSON, after a value", jsonLayout, j, ours + ",", ours + ", // mine", false},
		{"JSON, at the end", jsonLayout, j, "}\n    }", "} /* mine */\n    }", false},
		{"JSON, before the comma", jsonLayout, "{}", "}\n    }\n", "}\n    } /* mine */,\n", false},
		{"JSON, after the name", jsonLayout, j, `"a": {`, `"a": /* mine */ {`, false},
		{"JSON, a container that we created", jsonLayout, "{}", `"m": {`, "\"m\": { // mine", true},
		{"JSON, above the entry", jsonLayout, j, `"a": {`, "// mine\n    \"a\": {", true},
		{"TOML, after a value", tomlLayout, o, ours, ours + " # mine", false},
		{"TOML, the header", tomlLayout, o, "[m.a]", "[m.a] # mine", false},
		{"TOML, a line", tomlLayout, o, "args =", "# mine\nargs =", false},
		{"TOML, in an array", tomlLayout, o, `"stdio",`, "\"stdio\", # mine\n", false},
		{"TOML, below the entry", tomlLayout, o, "\\n\" }\n", "\\n\" }\n# mine\n", true},
		{"YAML, after a value", yamlLayout, y, ours, ours + " # mine", false},
		{"YAML, the key", yamlLayout, y, "a:", "a: # mine", false},
		{"YAML, a line", yamlLayout, y, "    args:", "    # mine\n    args:", false},
		{"YAML, below the entry", yamlLayout, y, "\\n\"\n", "\\n\"\n    # mine\n", true},
		{"YAML, below a block scalar", yamlLayout, y, "\"é\\\"\\\\\\n\"\n", "|\n        é\"\\\n\n      # mine\n", true},
		{"list, below the entry", listLayout, l, "\\n\"\n", "\\n\"\n  # mine\n", true},
	}
}

// TestUndo_KeepsCommentsOfPeople inserts the entry a. Then a person adds a comment, and a client adds another key.
func TestUndo_KeepsCommentsOfPeople(t *testing.T) {
	t.Parallel()
	for _, c := range addedComments() {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			value := server("")
			if c.layout == listLayout {
				value = server("a")
			}
			change, err := configedit.Apply(c.layout, []byte(c.before), configedit.Edit{Path: []string{"m", "a"}, Value: value})
			if err != nil {
				t.Fatal(err)
			}
			now := strings.Replace(string(change.After), c.old, c.new, 1)
			switch {
			case now == string(change.After):
				t.Fatalf("the comment has no place in:\n%s", now)
			case c.layout == jsonLayout:
				now = strings.Replace(now, "{\n", "{\n  \"n\": 1,\n", 1)
			case c.layout == tomlLayout:
				now += "[n]\n"
			default:
				now += "n: 1\n"
			}
			checkCommentKept(t, c, change, now)
		})
	}
}

func checkCommentKept(t *testing.T, c addedComment, change *configedit.Change, now string) {
	t.Helper()
	undone, err := storedManifest(t, change).Undo([]byte(now))
	if err != nil || !strings.Contains(string(undone.Data), "mine") {
		t.Fatalf("undone to %s, %v from:\n%s", undone.Data, err, now)
	}
	tree, err := configedit.Parse(c.layout, undone.Data)
	if err != nil {
		t.Fatal(err)
	}
	removed := true
	for _, e := range tree.Entries(c.layout, "m") {
		removed = removed && e.Name != "a"
	}
	switch {
	case removed != c.removed:
		t.Errorf("removed: %v, want %v:\n%s", removed, c.removed, undone.Data)
	case !removed && (len(undone.Kept) != 1 || !strings.Contains(undone.Kept[0].Reason, "a comment was added")):
		t.Errorf("kept: %v", undone.Kept)
	case !removed && string(undone.Data) != now:
		t.Errorf("the file was changed:\n%s", undone.Data)
	}
}

// The inserted value contains strings that look like comments. Undo nevertheless removes the entry.
func TestUndo_DoesNotTakeStringsForComments(t *testing.T) {
	t.Parallel()
	for _, layout := range []configedit.Layout{jsonLayout, tomlLayout, yamlLayout} {
		value := configedit.Object{
			{Name: "a # b", Value: "https://mesh.example/ # x"},
			{Name: "args", Value: []string{"it's # x", "\" # x", "\\", " #", "/* */", "\n# x\n"}},
		}
		change, err := configedit.Apply(layout, nil, configedit.Edit{Path: []string{"m", "a"}, Value: value})
		if err != nil {
			t.Fatal(err)
		}
		now := string(change.After) + "# later\n"
		if layout == jsonLayout {
			now = string(change.After) + "// later\n"
		}
		undone, err := storedManifest(t, change).Undo([]byte(now))
		if err != nil || len(undone.Kept) > 0 || strings.Contains(string(undone.Data), "mesh.example") {
			t.Errorf("%v: %+v, %v\n%s", layout.Format, undone.Kept, err, undone.Data)
		}
	}
}

// An edit has replaced an entry, and a person has added a comment to the new entry. Undo keeps the comment instead of
// restoring the old entry.
func TestUndo_KeepsCommentsInAReplacedEntry(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		layout              configedit.Layout
		before, mark, later string
	}{
		{jsonLayout, "{\"m\": {\"a\": {\"x\": 1}}}\n", "// mine\n", "// later\n"},
		{tomlLayout, "[m.a]\nx = 1\n", "# mine\n", "# later\n"},
		{yamlLayout, "m:\n  a:\n    x: 1\n", "# mine\n", "# later\n"},
	} {
		change, err := configedit.Apply(c.layout, []byte(c.before), configedit.Edit{Path: []string{"m", "a"}, Value: server("")})
		if err != nil {
			t.Fatal(err)
		}
		now := strings.Replace(string(change.After), `"/bin/sluice"`, `"/bin/sluice" `+c.mark, 1) + c.later
		if c.layout == jsonLayout {
			now = strings.Replace(now, c.mark+",", ", "+c.mark, 1)
		} else {
			now = strings.Replace(now, "\n\n", "\n", 1)
		}
		undone, err := storedManifest(t, change).Undo([]byte(now))
		if err != nil || len(undone.Kept) != 1 || string(undone.Data) != now {
			t.Errorf("%v: %+v, %v", c.layout.Format, undone, err)
		}
	}
}
