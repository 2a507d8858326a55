package configedit_test

import (
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/sluice/internal/configedit"
)

var hookItem = configedit.Object{{Name: "hooks", Value: "ours"}}

func isHookItem(n *configedit.Node) bool {
	value := n.Get("hooks")
	return value != nil && value.Text == "ours"
}

var itemPath = []string{"hooks", "Pre"}

func TestAddItem_IsTakenBackToTheByte(t *testing.T) {
	t.Parallel()
	for name, before := range map[string]string{
		"lines":           "{\n  \"hooks\": {\n    \"Pre\": [\n      {\"a\": 1}\n    ]\n  }\n}\n",
		"nested lines":    "{\n\t\"hooks\": {\n\t\t\"Pre\": [\n\t\t\t{\n\t\t\t\t\"a\": 1\n\t\t\t}\n\t\t]\n\t}\n}",
		"one line":        `{"hooks": {"Pre": [{"a": 1}, {"b": [2]}]}, "z": 1}`,
		"empty":           `{"hooks": {"Pre": []}}`,
		"empty, spaces":   "{\"hooks\": {\"Pre\": [\n  ]}}",
		"trailing comma":  "{\"hooks\": {\"Pre\": [\n    {\"a\": 1}, // first\n  ],},}\n",
		"comment":         "{\"hooks\": {\"Pre\": [\n    {\"a\": 1} // last\n    /* end */\n  ]}}",
		"CRLF and BOM":    "\ufeff{\r\n  \"hooks\": {\"Pre\": [\r\n    1\r\n  ]}\r\n}\r\n",
		"no list":         "{\n  \"hooks\": {\n    \"Post\": []\n  }\n}\n",
		"no hooks":        "{\n  \"model\": \"x\" // mine\n}\n",
		"no members":      "{}",
		"another of ours": `{"hooks": {"Pre": [{"hooks": "others"}]}}`,
	} {
		after, created, err := configedit.AddItem([]byte(before), itemPath, hookItem)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		root, err := configedit.Parse(configedit.Layout{Format: configedit.JSON}, after)
		if err != nil {
			t.Fatalf("%s: %v\n%s", name, err, after)
		}
		items := root.Get(itemPath...).Items
		if len(items) == 0 || !isHookItem(items[len(items)-1]) {
			t.Errorf("%s: not added:\n%s", name, after)
		}
		var back []byte
		if created != nil {
			undone, err := created.Undo(after)
			if err != nil {
				t.Fatal(err)
			}
			back = undone.Data
		} else {
			n := 0
			if back, n, err = configedit.RemoveItems(after, itemPath, isHookItem); err != nil || n != 1 {
				t.Errorf("%s: removed %d: %v", name, n, err)
			}
		}
		if string(back) != before {
			t.Errorf("%s: got back\n%q\nwant\n%q\nafter was\n%q", name, back, before, after)
		}
	}
}

func TestRemoveItems_KeepsItemsOfOthersAndComments(t *testing.T) {
	t.Parallel()
	const ours = `{"hooks": "ours"}`
	for before, want := range map[string]string{
		`{"hooks": {"Pre": [` + ours + `, 1, ` + ours + `, 2]}}`:                    `{"hooks": {"Pre": [ 1, 2]}}`,
		`{"hooks": {"Pre": [` + ours + `]}}`:                                        `{"hooks": {"Pre": []}}`,
		"{\"hooks\": {\"Pre\": [\n 1,\n // about the next\n " + ours + "\n]}}":      "{\"hooks\": {\"Pre\": [\n 1\n // about the next\n \n]}}",
		"{\"hooks\": {\"Pre\": [\n 1,\n // about the next\n " + ours + ",\n 2\n]}}": "{\"hooks\": {\"Pre\": [\n 1,\n // about the next\n \n 2\n]}}",
		`{"hooks": {"Pre": {"a": 1}}}`:                                              `{"hooks": {"Pre": {"a": 1}}}`,
		`{}`:                                                                        `{}`,
	} {
		got, _, err := configedit.RemoveItems([]byte(before), itemPath, isHookItem)
		if err != nil || string(got) != want {
			t.Errorf("%s\ngot  %q, %v\nwant %q", before, got, err, want)
		}
	}
}

func TestAddItem_RefusesWhatIsNotAList(t *testing.T) {
	t.Parallel()
	for before, says := range map[string]string{
		`{"hooks": {"Pre": {}}}`:     "not a list",
		`{"hooks": []}`:              "not an object",
		`{"hooks": {}, "hooks": {}}`: "twice",
		`{"hooks": {"Pre": [}}`:      "not valid JSON",
	} {
		if _, _, err := configedit.AddItem([]byte(before), itemPath, hookItem); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", before, err)
		}
	}
}
