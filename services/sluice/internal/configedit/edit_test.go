package configedit_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-mesh/sluice/services/sluice/internal/configedit"
)

var (
	jsonLayout = configedit.Layout{Format: configedit.JSON}
	tomlLayout = configedit.Layout{Format: configedit.TOML}
	yamlLayout = configedit.Layout{Format: configedit.YAML}
	listLayout = configedit.Layout{Format: configedit.YAML, NameKey: "name"}
)

// server returns a new value for an entry.
func server(name string) configedit.Object {
	object := configedit.Object{
		{Name: "command", Value: "/bin/sluice"},
		{Name: "args", Value: []string{"stdio", "--server", "a"}},
		{Name: "env", Value: configedit.Object{{Name: "X_1", Value: "é\"\\\n"}}},
	}
	if name != "" {
		object = append(configedit.Object{{Name: "name", Value: name}}, object...)
	}
	return object
}

func TestApply_ChangesOnlyTheEntry(t *testing.T) {
	t.Parallel()
	for _, c := range applyCases() {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			change, err := configedit.Apply(c.layout, []byte(c.before), configedit.Edit{Path: c.path, Value: c.value})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.after, string(change.After)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			m, err := change.Manifest()
			if err != nil {
				t.Fatal(err)
			}
			undone, err := m.Undo(change.After)
			if err != nil || !undone.Exact || string(undone.Data) != c.before {
				t.Errorf("undone: %+v, %v", undone, err)
			}
		})
	}
}

type applyCase struct {
	name          string
	layout        configedit.Layout
	before, after string
	path          []string
	value         any
}

const (
	jsonValue    = `{"command": "/bin/sluice", "args": ["stdio", "--server", "a"], "env": {"X_1": "é\"\\\n"}}`
	tomlValue    = "command = \"/bin/sluice\"\nargs = [\"stdio\", \"--server\", \"a\"]\nenv = { X_1 = \"é\\\"\\\\\\n\" }"
	jsonExpanded = `{
    "command": "/bin/sluice",
    "args": ["stdio", "--server", "a"],
    "env": {
      "X_1": "é\"\\\n"
    }
  }`
)

func applyCases() []applyCase { return slices.Concat(jsonCases(), tomlCases(), yamlCases()) }

// in replaces the text VALUE in the parameter parent with the parameter value.
func in(parent, value string) string { return strings.ReplaceAll(parent, "VALUE", value) }

func jsonCases() []applyCase {
	j, a := jsonLayout, []string{"m", "a"}
	deeper := strings.ReplaceAll(jsonExpanded, "\n", "\n  ")
	return []applyCase{
		{"JSON replace", j, "{ // c\n  \"m\": {\n    \"a\": {\"x\": [1]}, // one\n    \"b\": 1,\n  },\n}\n", in("{ // c\n  \"m\": {\n    \"a\": VALUE, // one\n    \"b\": 1,\n  },\n}\n", deeper), a, server("")},
		{"JSON replace in one line", j, `{"m":{"a":{},"b":1}}`, in(`{"m":{"a":VALUE,"b":1}}`, jsonValue), a, server("")},
		{"JSON insert after a comment", j, "{\n  \"m\": {\n    \"b\": 1 // one\n    // two\n  }\n}", in("{\n  \"m\": {\n    \"b\": 1, // one\n    \"a\": VALUE\n    // two\n  }\n}", deeper), a, server("")},
		{"JSON insert after a trailing comma", j, "{\n  \"m\": {\n    \"b\": 1, // one\n  }\n}", in("{\n  \"m\": {\n    \"b\": 1, // one\n    \"a\": VALUE,\n  }\n}", deeper), a, server("")},
		{"JSON insert in one line", j, `{"m": {"b": 1}}`, in(`{"m": {"b": 1, "a": VALUE}}`, jsonValue), a, server("")},
		{"JSON insert in an empty object", j, "{\n  \"m\": {}\n}", in("{\n  \"m\": {\n    \"a\": VALUE\n  }\n}", deeper), a, server("")},
		{"JSON insert after a comment in an empty object", j, "{\n  \"m\": { // c\n  }\n}", in("{\n  \"m\": { // c\n    \"a\": VALUE\n  }\n}", deeper), a, server("")},
		{"JSON insert with its container", j, "\ufeff{\r\n  \"b\": 1\r\n}\r\n", strings.ReplaceAll(in("\ufeff{\n  \"b\": 1,\n  \"m\": {\n    \"a\": VALUE\n  }\n}\n", deeper), "\n", "\r\n"), a, server("")},
		{"JSON insert in an empty file", j, "", in("{\n  \"m\": {\n    \"a\": VALUE\n  }\n}\n", deeper), a, server("")},
		{"JSON remove the first", j, "{\n\t\"m\": {\n\t\t\"a\": 1,\n\t\t\"b\": 2\n\t}\n}", "{\n\t\"m\": {\n\t\t\"b\": 2\n\t}\n}", a, nil},
		{"JSON remove the last", j, "{\n\t\"m\": {\n\t\t\"b\": 1,\n\t\t\"a\": 2 // c\n\t}\n}", "{\n\t\"m\": {\n\t\t\"b\": 1\n\t\t // c\n\t}\n}", a, nil},
		{"JSON remove the only one", j, `{"m": {"a": 1}}`, `{"m": {}}`, a, nil},
		{"JSON remove nothing", j, `{"m": {"b": 1}}`, `{"m": {"b": 1}}`, a, nil},
	}
}

func tomlCases() []applyCase {
	o, a := tomlLayout, []string{"m", "a"}
	return []applyCase{
		{"TOML replace", o, "x = 1\n[m.a] # c\n# d\ny = 1\n[m.a.env]\nz = 2 # e\n\n# f\n[m.b]\n", in("x = 1\n[m.a] # c\nVALUE\n\n# f\n[m.b]\n", tomlValue), a, server("")},
		{"TOML replace an empty table", o, "[m.a]", in("[m.a]\nVALUE", tomlValue), a, server("")},
		{"TOML insert", o, "\ufeffx = 1\r\n", strings.ReplaceAll(in("\ufeffx = 1\n\n[m.a]\nVALUE\n", tomlValue), "\n", "\r\n"), a, server("")},
		{"TOML insert without a final line break", o, "[m.b]\nx = 1", in("[m.b]\nx = 1\n\n[m.a]\nVALUE", tomlValue), a, server("")},
		{"TOML insert in an empty file", o, "", in("[m.\"a.b\"]\nVALUE\n", tomlValue), []string{"m", "a.b"}, server("")},
		{"TOML remove", o, "[m.a]\nx = 1\n# c\n[m.b]\n", "# c\n[m.b]\n", a, nil},
		{"TOML remove the last", o, "x = 1\n\n[m.a]\nx = '''\n[m.b]\n'''\n", "x = 1\n", a, nil},
	}
}

func yamlCases() []applyCase {
	y, l, a := yamlLayout, listLayout, []string{"m", "a"}
	yamlAt := func(indent string) string {
		return strings.ReplaceAll("command: \"/bin/sluice\"\nargs: [\"stdio\", \"--server\", \"a\"]\nenv:\n  X_1: \"é\\\"\\\\\\n\"", "\n", "\n"+indent)
	}
	return []applyCase{
		{"YAML replace", y, "m:\n  # c\n  a: # d\n    x: |\n      text\n      # no comment\n\n# e\n  b: {}\n", in("m:\n  # c\n  a: # d\n    VALUE\n\n# e\n  b: {}\n", yamlAt("    ")), a, server("")},
		{"YAML insert", y, "m:\n  b:\n    x: 1\n\n# c\nn: 1\n", in("m:\n  b:\n    x: 1\n  a:\n    VALUE\n\n# c\nn: 1\n", yamlAt("    ")), a, server("")},
		{"YAML insert with its container", y, "n:\r\n- 1\r\n", strings.ReplaceAll(in("n:\n- 1\nm:\n  a:\n    VALUE\n", yamlAt("    ")), "\n", "\r\n"), a, server("")},
		{"YAML insert in an empty container", y, "m: {} # c\nn: 1", in("m: # c\n  a:\n    VALUE\nn: 1", yamlAt("    ")), a, server("")},
		{"YAML insert in an empty file", y, "", in("m:\n  a:\n    VALUE\n", yamlAt("    ")), a, server("")},
		{"YAML replace null", y, "m:\n  a:\n", in("m:\n  a:\n    VALUE\n", yamlAt("    ")), a, server("")},
		{"YAML remove", y, "m:\n  a:\n    x: 1\n  b:\n    x: 1\n", "m:\n  b:\n    x: 1\n", a, nil},
		{"YAML remove the only one", y, "m: # c\n  a:\n    x: 1\n", "m: {} # c\n", a, nil},
		{"list replace", l, "m:\n- name: b\n- name: a\n  x: 1\n\n# c\n- name: c\n", in("m:\n- name: b\n- name: \"a\"\n  VALUE\n\n# c\n- name: c\n", yamlAt("  ")), a, server("a")},
		{"list insert", l, "m:\n  - name: b\n    x: 1\nn: 1\n", in("m:\n  - name: b\n    x: 1\n  - name: \"a\"\n    VALUE\nn: 1\n", yamlAt("    ")), a, server("a")},
		{"list insert in an empty file", l, "# c\n", in("# c\nm:\n  - name: \"a\"\n    VALUE\n", yamlAt("    ")), a, server("a")},
		{"list remove the only one", l, "m:\n  - x: 1\n    name: a\n", "m: []\n", a, nil},
	}
}

type refusal struct {
	name         string
	layout       configedit.Layout
	data         string
	line, column int
	message      string
}

func refusals() []refusal {
	deep := strings.Repeat("[", 200)
	return []refusal{
		{"JSON syntax", jsonLayout, "{\n  \"m\": {\"a\": tru}\n}", 2, 14, "not valid JSON"},
		{"JSON duplicate key", jsonLayout, "{\"m\": {},\n \"\\u006d\": {}}", 2, 2, "this key twice"},
		{"JSON depth", jsonLayout, deep, 1, 129, "nested deeper than 128"},
		{"JSON container", jsonLayout, "{\"m\": [1]}", 1, 7, "not an object"},
		{"UTF-8", jsonLayout, "{\n\"\xff\": 1}", 2, 2, "not valid UTF-8"},
		{"size", jsonLayout, strings.Repeat(" ", configedit.MaxBytes+1), 0, 0, "larger than 8 MiB"},
		{"TOML syntax", tomlLayout, "x = 1\ny = = 2\n", 2, 5, "not valid TOML"},
		{"TOML duplicate key", tomlLayout, "x = 1\nx = 2\n", 2, 1, "not valid TOML"},
		{"TOML inline container", tomlLayout, "m = {}\n", 1, 1, "inline table"},
		{"TOML inline entry", tomlLayout, "[m]\na = {x = 1}\n", 2, 1, "inline table"},
		{"TOML dotted keys", tomlLayout, "m.a.x = 1\n", 1, 1, "dotted keys"},
		{"TOML array of tables", tomlLayout, "[[m.a]]\nx = 1\n", 1, 1, "array of tables"},
		{"TOML scattered tables", tomlLayout, "[m.a]\n[n]\n[m.a.env]\n", 3, 1, "several places"},
		{"TOML subtable first", tomlLayout, "[m.a.env]\n[m.a]\n", 1, 1, "subtable before"},
		{"TOML depth of values", tomlLayout, "x = " + deep + strings.Repeat("]", 200), 1, 1, "nested deeper than 128"},
		{"TOML depth of keys", tomlLayout, strings.Repeat("a.", 200) + "a = 1", 1, 1, "nested deeper than 128"},
	}
}

func yamlRefusals() []refusal {
	deep := strings.Repeat("[", 200)
	return []refusal{
		{"YAML syntax", yamlLayout, "m:\n\t- 1\n", 2, 1, "not valid YAML"},
		{"YAML duplicate key", yamlLayout, "m: {}\n\"m\": {}\n", 2, 1, "this key twice"},
		{"YAML flow root", yamlLayout, "{m: {}}", 1, 1, "braces"},
		{"YAML flow container", yamlLayout, "m: {b: {x: 1}}", 1, 4, "braces"},
		{"YAML flow entry", yamlLayout, "m:\n  a: {x: 1}", 2, 6, "braces"},
		{"YAML anchor", yamlLayout, "m:\n  a: &x\n    y: 1\n", 2, 6, "anchor"},
		{"YAML anchor inside", yamlLayout, "m:\n  a:\n    y: &x 1\nz: *x\n", 3, 8, "anchor"},
		{"YAML alias", yamlLayout, "x: &x {}\nm:\n  a: *x\n", 3, 6, "alias"},
		{"YAML merge key", yamlLayout, "x: &x {}\nm:\n  <<: *x\n", 3, 3, "merge key"},
		{"YAML tag", yamlLayout, "m: !!map\n  b: 1\n", 1, 4, "tag"},
		{"YAML line break", yamlLayout, "m:\r  b: 1\n", 1, 3, "line break"},
		{"YAML documents", yamlLayout, "m: {}\n---\nn: {}\n", 2, 1, "second document"},
		{"YAML null", yamlLayout, "~\n", 0, 0, "would make the file invalid"},
		{"YAML depth", yamlLayout, "m: " + deep + strings.Repeat("]", 200), 1, 0, "not valid YAML"},
		{"list with two items of a name", listLayout, "m:\n- name: a\n- name: a\n", 3, 3, "two items"},
		{"list is a mapping", listLayout, "m:\n  a:\n    x: 1\n", 2, 3, "not a list"},
	}
}

func TestApply_RefusesWhatItCannotEdit(t *testing.T) {
	t.Parallel()
	for _, c := range append(refusals(), yamlRefusals()...) {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			value := server("")
			if c.layout == listLayout {
				value = server("a")
			}
			_, err := configedit.Apply(c.layout, []byte(c.data), configedit.Edit{Path: []string{"m", "a"}, Value: value})
			refused, ok := errors.AsType[*configedit.EditError](err)
			if !ok || refused.Line != c.line || c.column > 0 && refused.Column != c.column || !strings.Contains(err.Error(), c.message) {
				t.Fatalf("error %v, want line %d, column %d: %s", err, c.line, c.column, c.message)
			}
			if refused.Suggestion == "" || !strings.Contains(refused.Snippet, "/bin/sluice") {
				t.Errorf("no way out: %+v", refused)
			}
			if _, err := configedit.Apply(c.layout, nil, configedit.Edit{Path: []string{"m", "a"}, Value: value}); err != nil {
				t.Error(err)
			}
			if tree, err := configedit.Parse(c.layout, []byte(refused.Snippet)); err != nil || tree.Get("m") == nil {
				t.Errorf("the snippet is invalid: %v\n%s", err, refused.Snippet)
			}
		})
	}
}

// An error message must not contain values of the file, because they may be secrets.
func TestApply_ErrorsDoNotContainValues(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		layout configedit.Layout
		data   string
	}{
		{jsonLayout, "{\"m\": {\"a\": \"secret\x01\"}}"},
		{jsonLayout, "{\"secret\": 1, \"secret\": 1}"},
		{jsonLayout, "{\"m\": secret}"},
		{tomlLayout, "m = \"secret\x01\""},
		{tomlLayout, "m = secret"},
		{yamlLayout, "m: *secret"},
		{yamlLayout, "m: 'secret"},
		{yamlLayout, "secret: 1\nsecret: 1"},
	} {
		_, err := configedit.Parse(c.layout, []byte(c.data))
		if err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v", c.data, err)
		}
	}
}

// TestApply_LongLines edits files whose values are all on one line. If an edit took time that is quadratic in the
// number of values, it would take sixteen times as long for a file of four times the size. The test requires that it
// takes at most ten times as long. Because the machine can be busy, only one of three attempts has to succeed.
func TestApply_LongLines(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		layout             configedit.Layout
		head, item, ending string
	}{
		{jsonLayout, `{"x": [0`, ",1", "]}"},
		{tomlLayout, "x = [0", ",1", "]\n"},
		{yamlLayout, "x: [0", ",1", "]\n"},
		{listLayout, "x: [0", ",{}", "]\n"},
	} {
		apply := func(size int) time.Duration {
			data := c.head + strings.Repeat(c.item, size/len(c.item)) + c.ending
			start := time.Now()
			if _, err := configedit.Apply(c.layout, []byte(data), configedit.Edit{Path: []string{"m", "a"}, Value: server("a")}); err != nil {
				t.Errorf("%v: %v", c.layout, err)
			}
			return time.Since(start)
		}
		ratio := 0.0
		for range 3 {
			if ratio = float64(apply(128<<10)) / float64(apply(32<<10)); ratio <= 10 {
				break
			}
		}
		if ratio > 10 {
			t.Errorf("%v: a file of 128 KiB takes %.1f times as long as one of 32 KiB", c.layout, ratio)
		}
	}
}
