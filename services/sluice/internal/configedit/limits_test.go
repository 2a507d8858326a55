package configedit_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/sluice/internal/configedit"
)

// The time that the TOML decoder needs is quadratic in the number of keys. Therefore Parse refuses a file with too many
// keys before it uses the decoder.
func TestParse_RefusesTOMLWithTooManyKeys(t *testing.T) {
	t.Parallel()
	for name, form := range map[string]struct {
		head, item, ending string
		perItem            int
	}{
		"keys":                      {"", "k%d = 1\n", "", 1},
		"dotted keys":               {"", "a.k%d = 1\n", "", 2},
		"headers":                   {"", "[k%d]\n", "", 1},
		"arrays of tables":          {"", "[[a]] # %d\n", "", 1},
		"inline table":              {"", "k%d = 1, ", "last = 1 }\n", 1},
		"inline tables in an array": {"", "{ k%d = 1 },", "]\n", 1},
	} {
		switch {
		case strings.HasPrefix(form.item, "{"):
			form.head = "a = ["
		case form.ending != "":
			form.head = "a = { "
		}
		for _, items := range []int{10_000/form.perItem - 2, 10_000/form.perItem + 1} {
			var b strings.Builder
			b.WriteString(form.head)
			for i := range items {
				fmt.Fprintf(&b, form.item, i)
			}
			b.WriteString(form.ending)
			_, err := configedit.Parse(tomlLayout, []byte(b.String()))
			refused, ok := errors.AsType[*configedit.EditError](err)
			if tooMany := items*form.perItem > 10_000; ok != tooMany || tooMany && !strings.Contains(refused.Message, "10000 keys") {
				t.Errorf("%s: %d items: %v", name, items, err)
			}
		}
	}
}

// Apply must not need time that is quadratic in the number of members to find out that there are too many.
func TestApply_RefusesAValueWithTooManyMembers(t *testing.T) {
	t.Parallel()
	object := make(configedit.Object, 1_001)
	node := &configedit.Node{Kind: configedit.Map}
	for i := range object {
		name := fmt.Sprintf("k%d", i)
		object[i] = configedit.Field{Name: name, Value: i}
		node.Members = append(node.Members, configedit.Member{Name: name, Value: &configedit.Node{Kind: configedit.Null}})
	}
	for name, value := range map[string]any{
		"object": object, "node": node, "nested": configedit.Object{{Name: "kept", Value: node}},
	} {
		_, err := configedit.Apply(jsonLayout, nil, configedit.Edit{Path: []string{"m", "a"}, Value: value})
		if err == nil || !strings.Contains(err.Error(), "more than 1000 members") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := configedit.Apply(jsonLayout, nil, configedit.Edit{Path: []string{"m", "a"}, Value: object[1:]}); err != nil {
		t.Error(err)
	}
}

// The number of edits is limited, because each edit parses the whole file.
func TestApply_RefusesTooManyEdits(t *testing.T) {
	t.Parallel()
	edits := make([]configedit.Edit, 257)
	for i := range edits {
		edits[i] = configedit.Edit{Path: []string{"m", fmt.Sprint(i)}, Value: i}
	}
	if _, err := configedit.Apply(jsonLayout, nil, edits...); err == nil || !strings.Contains(err.Error(), "257 edits") {
		t.Errorf("error %v", err)
	}
	change, err := configedit.Apply(jsonLayout, nil, edits[1:]...)
	if err != nil {
		t.Fatal(err)
	}
	m := storedManifest(t, change)
	m.Ours = append(m.Ours, m.Ours[0])
	m.Old = []byte(strings.NewReplacer(`"entries":[`, `"entries":[{"path":["m","x"]},`, `"steps":[`, `"steps":[[],`).Replace(string(m.Old)))
	if undone, err := m.Undo([]byte("{}")); err == nil || !strings.Contains(err.Error(), "257 edits") {
		t.Errorf("undone: %+v, %v", undone, err)
	}
}
