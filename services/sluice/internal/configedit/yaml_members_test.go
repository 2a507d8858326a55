package configedit_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-mesh/sluice/services/sluice/internal/configedit"
)

// SetMembers does not change the other bytes of an entry. Undo restores all bytes.
func TestSetMembers_KeepsTheRestOfTheEntry(t *testing.T) {
	t.Parallel()
	for before, after := range map[string]string{
		"s:\n  a:\n    x: 1\n":                      "s:\n  a:\n    x: 1\n    mode: \"observe\"\n    until: \"t\"\n",
		"s:\n  a:\n    x: 1":                        "s:\n  a:\n    x: 1\n    mode: \"observe\"\n    until: \"t\"",
		"s:\r\n  a:\r\n    x: 1 # c\r\n  b: {}\r\n": "s:\r\n  a:\r\n    x: 1 # c\r\n    mode: \"observe\"\r\n    until: \"t\"\r\n  b: {}\r\n",
		"s:\n    a:\n        # c\n        x: {y: 1}\n        mode: old # d\n# end\n": "s:\n    a:\n        # c\n        x: {y: 1}\n        mode: \"observe\"\n        until: \"t\"\n# end\n",
		"s:\n  a:\n    until: 1\n    x:\n      until: 3\n      mode: 4\n":            "s:\n  a:\n    x:\n      until: 3\n      mode: 4\n    mode: \"observe\"\n    until: \"t\"\n",
		"s:\n  a:\n    x: |\n      text\n      more\n\n  b:\n    y: 1\n":             "s:\n  a:\n    x: |\n      text\n      more\n    mode: \"observe\"\n    until: \"t\"\n\n  b:\n    y: 1\n",
	} {
		change, err := configedit.SetMembers([]byte(before), []string{"s", "a"}, observeMembers())
		if err != nil {
			t.Errorf("%q: %v", before, err)
			continue
		}
		if diff := cmp.Diff(after, string(change.After)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		m := storedManifest(t, change)
		newline := "\n"
		if strings.Contains(before, "\r\n") {
			newline = "\r\n"
		}
		for _, added := range []string{"", "# mine" + newline} {
			undone, err := m.Undo([]byte(added + string(change.After)))
			if err != nil || string(undone.Data) != added+before {
				t.Errorf("%q: undo returns %+v, %v", before, undone, err)
			}
		}
	}
}

func observeMembers() configedit.Object {
	return configedit.Object{{Name: "mode", Value: "observe"}, {Name: "until", Value: "t"}}
}

func TestSetMembers_RefusesWhatItCannotEdit(t *testing.T) {
	t.Parallel()
	for _, before := range []string{"", "s:\n  b:\n    x: 1\n", "s:\n  a: {x: 1}\n", "s: {a: {x: 1}}\n", "s:\n  a: 1\n", "s:\n  a:\n    mode: |\n      x\n    y: 1\n", "s:\n  a:\n    x: &y\n      z: 1\n"} {
		change, err := configedit.SetMembers([]byte(before), []string{"s", "a"}, observeMembers())
		if refused, ok := errors.AsType[*configedit.EditError](err); !ok || strings.Contains(refused.Error(), "configedit") {
			t.Errorf("%q: %+v, %v", before, change, err)
		}
	}
}
