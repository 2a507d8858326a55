package hooksetup

import (
	"fmt"

	"github.com/sluice-mesh/sluice/services/sluice/internal/configedit"
)

// Faults returns the differences between the hook in the settings file and the hook that Install would write. Each
// difference can make the client run calls without waiting for the hook's response. Faults ignores differences between
// the commands.
func (t Target) Faults() ([]string, error) {
	items, err := t.items()
	if err != nil {
		return nil, err
	}
	var out []string
	for i, item := range items {
		if item == nil {
			continue
		}
		for _, fault := range t.faultsOf(item) {
			out = append(out, fmt.Sprintf("the hook for %s %s", t.Events()[i], fault))
		}
	}
	return out, nil
}

// faultsOf returns the differences between an item in the settings and the item that Install would write with the same
// command.
func (t Target) faultsOf(item *configedit.Node) []string {
	return differences(item, nodeOf(t.item(commandOf(item))))
}

// commandOf returns the command of an item for which isOurs returns true.
func commandOf(item *configedit.Node) string { return item.Get(hooksKey).Items[0].Get("command").Text }

// differences returns the differences between two items. The function isOurs must return true for the first item.
func differences(item, want *configedit.Node) []string {
	return append(membersOf(item, want), membersOf(item.Get(hooksKey).Items[0], want.Get(hooksKey).Items[0])...)
}

// membersOf returns the differences between the members of two objects. It ignores members whose wanted value is a
// list. The result contains no values of the first object, because they may be secrets.
func membersOf(have, want *configedit.Node) (out []string) {
	for _, m := range want.Members {
		switch v := have.Get(m.Name); {
		case m.Value.Kind == configedit.List:
		case v == nil:
			out = append(out, fmt.Sprintf("has no %q", m.Name))
		case v.Kind != m.Value.Kind || v.Text != m.Value.Text:
			out = append(out, fmt.Sprintf("has another %q than %s", m.Name, m.Value.Text))
		}
	}
	for _, m := range have.Members {
		if want.Get(m.Name) == nil {
			out = append(out, fmt.Sprintf("has the additional member %q", m.Name))
		}
	}
	return out
}
