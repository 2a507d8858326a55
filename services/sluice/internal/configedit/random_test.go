package configedit_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/sluice-mesh/sluice/services/sluice/internal/configedit"
)

// A randomFile is a file with a container named m. The positions of the entries in this container are known.
type randomFile struct {
	text  strings.Builder
	t     *rapid.T
	names []string
	// spans contains, for each entry, the start and the end of its value.
	spans [][2]int
}

func (f *randomFile) write(format string, args ...any) { fmt.Fprintf(&f.text, format, args...) }

func (f *randomFile) pick(label string, from ...string) string {
	return rapid.SampledFrom(from).Draw(f.t, label)
}

func (f *randomFile) number(label string, least, most int) int {
	return rapid.IntRange(least, most).Draw(f.t, label)
}

// entryNames draws distinct names, some of which need quotes.
func entryNames(t *rapid.T) []string {
	return rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"a", "b", "c-d", "e.f", "g h", "né", "x\"y", "yes", "12"}), 0, 5, rapid.ID).Draw(t, "names")
}

// space draws white space and comments.
func (f *randomFile) space() string {
	return f.pick("space", "", "", " ", "\n", "\n\n\t", " // c { \" \n", "/* } \n */ ", " /* c */")
}

// json writes a random JSON value.
func (f *randomFile) json(depth int) {
	kinds := []string{"1", "-2.5e3", `"s\u00e9\""`, "true", "null", `"// no comment"`, `"{"`, "object", "array"}
	kind := f.pick("kind", kinds...)
	if depth > 3 || kind != "object" && kind != "array" {
		f.write("%s", strings.NewReplacer("object", "{}", "array", "[]").Replace(kind))
		return
	}
	open, end := "[", "]"
	if kind == "object" {
		open, end = "{", "}"
	}
	f.write("%s", open)
	n := f.number("size", 0, 3)
	for i := range n {
		f.write("%s", f.space())
		if kind == "object" {
			f.write(`"k%d"%s:%s`, i, f.space(), f.space())
		}
		f.json(depth + 1)
		f.write("%s", f.space())
		if i < n-1 || f.number("trailing", 0, 3) == 0 {
			f.write(",")
		}
	}
	f.write("%s%s", f.space(), end)
}

func (f *randomFile) jsonFile() {
	f.write("%s{%s", f.space(), f.space())
	if f.number("before", 0, 1) == 1 {
		f.write(`"p"%s:`, f.space())
		f.json(0)
		f.write("%s,%s", f.space(), f.space())
	}
	f.write(`"m"%s:%s{`, f.space(), f.space())
	for i, name := range f.names {
		f.write("%s%s%s:%s", f.space(), strconv.Quote(name), f.space(), f.space())
		start := f.text.Len()
		f.json(1)
		f.spans = append(f.spans, [2]int{start, f.text.Len()})
		f.write("%s", f.space())
		if i < len(f.names)-1 || f.number("trailing", 0, 2) == 0 {
			f.write(",")
		}
	}
	f.write("%s}%s", f.space(), f.space())
	if f.number("after", 0, 1) == 1 {
		f.write(`,%s"q":`, f.space())
		f.json(0)
	}
	f.write("%s}%s", f.space(), f.space())
}

// lines draws blank lines and comments.
func (f *randomFile) lines() string {
	return f.pick("lines", "", "", "\n", "# c = [x]\n", "\n# \"c: {}\n\n")
}

var tomlValues = []string{
	"1", "-2.5", `"s # no comment"`, "'''\n[m.a]\n'''", "[1, # c\n 2]", "{ x = 1, y = [] }", "1979-05-27T07:32:00Z", "true", `"""
# no comment
x = 1"""`,
}

func (f *randomFile) tomlFile() {
	f.write("%sr = %s\n%s", f.lines(), f.pick("value", tomlValues...), f.lines())
	if f.number("other", 0, 1) == 1 {
		f.write("[[o.p]]\nx = %s\n%s[[o.p]]\n%s", f.pick("value", tomlValues...), f.lines(), f.lines())
	}
	for _, name := range f.names {
		f.write("%s%s[ m . %s ]%s", f.lines(), f.pick("indent", "", "  "), strconv.Quote(name), f.pick("comment", "", " # c"))
		start := f.text.Len()
		end := start
		f.write("\n")
		for i := range f.number("keys", 0, 3) {
			f.write("%s  k%d = %s", f.lines(), i, f.pick("value", tomlValues...))
			f.write("%s", f.pick("comment", "", " # c"))
			end = f.text.Len()
			f.write("\n")
		}
		if f.number("subtable", 0, 2) == 0 {
			f.write("%s[m.%s.env]\nX = %s", f.lines(), strconv.Quote(name), f.pick("value", tomlValues...))
			end = f.text.Len()
			f.write("\n")
		}
		f.spans = append(f.spans, [2]int{start, end})
		f.write("%s", f.lines())
	}
	if f.number("last", 0, 1) == 1 {
		f.write("[z]\nx = %s\n%s", f.pick("value", tomlValues...), f.lines())
	}
}

// yaml writes the value of a key, beginning immediately after the colon. It returns the offset of the end of the
// value's last line.
func (f *randomFile) yaml(indent string, depth int) (end int) {
	kinds := []string{"1", "s", `"s # no"`, "[1, {x: y}]", "|\nx\n# no comment\n y", ">-\nx\n\ny", "{}", "~", "2001-01-01", "map", "list", "'a\n\n b'"}
	kind := f.pick("kind", kinds...)
	if depth > 2 && (kind == "map" || kind == "list") {
		kind = "1"
	}
	deeper := indent + f.pick("indent", " ", "  ", "    ")
	switch kind {
	case "map":
		f.write("\n")
		for i := range f.number("size", 1, 3) {
			f.write("%s%sk%d:", f.pick("lines", "", "\n", indent+"# c: [\n", deeper+"# c\n"), deeper, i)
			end = f.yaml(deeper, depth+1)
		}
	case "list":
		f.write("\n")
		for range f.number("size", 1, 3) {
			f.write("%s- %s", deeper, f.pick("item", "1", "x: 1", "[a]", `"b"`, "x: 1\n"+deeper+"  y: 2"))
			end = f.text.Len()
			f.write("\n")
		}
	default:
		f.write(" %s", strings.ReplaceAll(kind, "\n", "\n"+deeper))
		if !strings.Contains(kind, "\n") {
			f.write("%s", f.pick("comment", "", " # c"))
		}
		end = f.text.Len()
		f.write("\n")
	}
	return end
}

func (f *randomFile) yamlFile(list bool) {
	f.write("%sp:", f.lines())
	f.yaml("", 0)
	f.write("%sm:%s\n", f.lines(), f.pick("comment", "", " # c"))
	outer := f.pick("indent", " ", "   ")
	if list {
		outer = f.pick("list", "", "  ")
	}
	for _, name := range f.names {
		f.write("%s", f.lines())
		var inner string
		if list {
			inner = outer + "  "
			f.write("%s- ", outer)
		} else {
			inner = outer + f.pick("indent", " ", "    ")
			f.write("%s%s:%s\n%s", outer, strconv.Quote(name), f.pick("comment", "", " # c"), inner)
		}
		start := f.text.Len()
		f.write("name: %s", strconv.Quote(name))
		end := f.text.Len()
		f.write("\n")
		for i := range f.number("keys", 0, 3) {
			f.write("%s%sk%d:", f.pick("lines", "", "\n", "# c: [\n", inner+"# c\n"), inner, i)
			end = f.yaml(inner, 1)
		}
		f.spans = append(f.spans, [2]int{start, end})
	}
	if f.number("last", 0, 1) == 1 {
		f.write("%sz:", f.lines())
		f.yaml("", 0)
	}
	f.write("%s", f.lines())
}

// bytes returns the content of the file. If it adds a byte order mark or changes line breaks to CR LF, it adjusts the
// spans.
func (f *randomFile) bytes(bom, crlf bool) []byte {
	text := f.text.String()
	prefix := ""
	if bom {
		prefix = "\ufeff"
	}
	convert := func(s string) string {
		if crlf {
			return strings.ReplaceAll(s, "\n", "\r\n")
		}
		return s
	}
	for i, s := range f.spans {
		f.spans[i] = [2]int{len(prefix) + len(convert(text[:s[0]])), len(prefix) + len(convert(text[:s[1]]))}
	}
	return []byte(prefix + convert(text))
}

func drawFile(t *rapid.T, l configedit.Layout) (*randomFile, []byte) {
	f := &randomFile{t: t, names: entryNames(t)}
	switch l {
	case jsonLayout:
		f.jsonFile()
	case tomlLayout:
		f.tomlFile()
	case yamlLayout:
		f.yamlFile(false)
	default:
		f.yamlFile(true)
	}
	return f, f.bytes(rapid.Bool().Draw(t, "bom"), rapid.Bool().Draw(t, "crlf"))
}

// TestRandom_EditsAreUndoneToTheByte edits random files. It checks that bytes outside the entries stay unchanged, and
// that undo restores the file. SLUICE_EDITS is the number of edits for each format.
func TestRandom_EditsAreUndoneToTheByte(t *testing.T) {
	t.Parallel()
	for name, l := range map[string]configedit.Layout{"JSON": jsonLayout, "TOML": tomlLayout, "YAML": yamlLayout, "list": listLayout} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			total, seen := runs(t, 2500), 0
			for seen < total {
				rapid.Check(t, func(t *rapid.T) { seen += editRandomFile(t, l) })
				if t.Failed() {
					return
				}
			}
		})
	}
}

// runs returns the value of SLUICE_EDITS, or the given default if the variable is not set.
func runs(t *testing.T, otherwise int) int {
	t.Helper()
	text, ok := os.LookupEnv("SLUICE_EDITS")
	if !ok {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// editRandomFile edits a random file and returns the number of edits.
func editRandomFile(t *rapid.T, l configedit.Layout) int {
	f, before := drawFile(t, l)
	all := append([]string{"new"}, f.names...)
	data := before
	var edits []configedit.Edit
	for i := range rapid.IntRange(1, 3).Draw(t, "edits") {
		name := rapid.SampledFrom(all).Draw(t, "name")
		e := configedit.Edit{Path: []string{"m", name}}
		if rapid.IntRange(0, 3).Draw(t, "remove") > 0 {
			e.Value = configedit.Object{{Name: "name", Value: name}, {Name: "command", Value: rapid.String().Draw(t, "command")}, {Name: "env", Value: configedit.Object{{Name: "x y", Value: 1}}}}
		}
		change, err := configedit.Apply(l, data, e)
		if err != nil {
			t.Fatalf("%v\n%q", err, data)
		}
		if i == 0 {
			checkOtherBytes(t, f, name, e.Value == nil, data, change.After)
		}
		edits, data = append(edits, e), change.After
	}
	change, err := configedit.Apply(l, before, edits...)
	if err != nil || !bytes.Equal(change.After, data) {
		t.Fatalf("all edits at once: %v", err)
	}
	m, err := change.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	undone, err := m.Undo(data)
	if err != nil || !bytes.Equal(undone.Data, before) {
		t.Fatalf("%v\nbefore %q\nundone %q", err, before, undone.Data)
	}
	undoAfterAnotherChange(t, l, m, before, data)
	return len(edits)
}

// checkOtherBytes checks that the bytes outside the edited entry are unchanged. It does not use the parser.
func checkOtherBytes(t *rapid.T, f *randomFile, name string, removed bool, before, after []byte) {
	for i, have := range f.names {
		if have == name && !removed {
			start, end := f.spans[i][0], f.spans[i][1]
			if !bytes.HasPrefix(after, before[:start]) || !bytes.HasSuffix(after, before[end:]) {
				t.Fatalf("bytes outside the entry %q changed\nbefore %q\nafter  %q", name, before, after)
			}
			return
		}
	}
	longer, shorter := after, before
	if removed {
		longer, shorter = before, bytes.Replace(bytes.Replace(after, []byte("m: {}"), []byte("m:"), 1), []byte("m: []"), []byte("m:"), 1)
	}
	for _, b := range longer {
		if len(shorter) > 0 && shorter[0] == b {
			shorter = shorter[1:]
		}
	}
	if len(shorter) > 0 {
		t.Fatalf("bytes outside the entry %q changed\nbefore %q\nafter  %q", name, before, after)
	}
}

// undoAfterAnotherChange undoes the edits after another program has added an entry. The result contains the old entries
// and the added entry.
func undoAfterAnotherChange(t *rapid.T, l configedit.Layout, m *configedit.Manifest, before, data []byte) {
	added := configedit.Edit{Path: []string{"m", "added"}, Value: configedit.Object{{Name: "name", Value: "added"}}}
	theirs, err := configedit.Apply(l, data, added)
	if err != nil {
		t.Fatalf("%v\n%q", err, data)
	}
	undone, err := m.Undo(theirs.After)
	if err != nil || len(undone.Kept) > 0 {
		t.Fatalf("%v, kept %v\nbefore %q\nedited %q", err, undone.Kept, before, theirs.After)
	}
	want, err := configedit.Apply(l, before, added)
	if err != nil {
		t.Fatal(err)
	}
	if a, b := treeOf(t, l, want.After), treeOf(t, l, undone.Data); a != b {
		t.Fatalf("want %s\ngot  %s\n%q\n%q", a, b, want.After, undone.Data)
	}
}

// treeOf returns the values of a file as JSON.
func treeOf(t *rapid.T, l configedit.Layout, data []byte) string {
	root, err := configedit.Parse(l, data)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(plain(root))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// plain converts a tree to values that encoding/json writes with sorted keys. Lists of named items become maps.
func plain(n *configedit.Node) any {
	if n.Kind == configedit.Map {
		out := make(map[string]any)
		for _, m := range n.Members {
			out[m.Name] = plain(m.Value)
		}
		return out
	}
	out := []any{n.Kind, n.Text}
	named := make(map[string]any)
	for _, item := range n.Items {
		if name := item.Get("name"); name != nil {
			named[name.Text] = plain(item)
		} else {
			out = append(out, plain(item))
		}
	}
	if len(named) > 0 {
		return named
	}
	return out
}
