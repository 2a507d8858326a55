package inventory

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	wasmagentv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
)

// Compare compares this list, which was computed from a journal, with the list of the stored parts. It returns the
// first difference, or nil if the lists are equal. It compares files in the order of their paths, then todos, messages,
// record fields and guest fields. It ignores record fields with the given names.
func (i *Inventory) Compare(stored *Inventory, ignored ...string) *wasmagentv1.StoredDifference {
	if d := compareFiles(i.files, stored.files); d != nil {
		return d
	}
	if d := compareList("todo", i.todos, stored.todos); d != nil {
		return d
	}
	if d := compareList("message", i.messages, stored.messages); d != nil {
		return d
	}
	if d := compareFields("record", i.record, stored.record, ignored); d != nil {
		return d
	}
	return compareFields("guest", i.guest, stored.guest, nil)
}

// unionNames returns the keys of two maps, sorted and without duplicates.
func unionNames(a, b map[string]entry) []string {
	all := maps.Clone(a)
	if all == nil {
		all = make(map[string]entry)
	}
	maps.Copy(all, b)
	return slices.Sorted(maps.Keys(all))
}

func compareFiles(journal, stored map[string]entry) *wasmagentv1.StoredDifference {
	for _, path := range unionNames(journal, stored) {
		want, recorded := journal[path]
		got, exists := stored[path]
		switch {
		case !exists:
			return difference("file", path, "the file %q is missing: the journal says that the agent has it", path)
		case !recorded:
			return difference("file", path, "the file %q was added: the journal does not say that the agent has it", path)
		case want.value == got.value:
			continue
		}
		wantSum, _, _ := strings.Cut(want.value, " ")
		if gotSum, _, _ := strings.Cut(got.value, " "); wantSum == gotSum {
			return difference("file", path, "the time of the file %q is not the one in the journal", path)
		}
		return difference("file", path, "the content of the file %q is not the one in the journal", path)
	}
	return nil
}

func compareList(part string, journal, stored []entry) *wasmagentv1.StoredDifference {
	for n := range max(len(journal), len(stored)) {
		name := strconv.Itoa(n + 1)
		switch {
		case n >= len(stored):
			return difference(part, name, "%s %s is missing: the journal says that there are %d", part, name, len(journal))
		case n >= len(journal):
			return difference(part, name, "%s %s was added: the journal says that there are %d", part, name, len(journal))
		case journal[n].value != stored[n].value:
			return difference(part, name, "%s %s is not the one in the journal", part, name)
		}
	}
	return nil
}

func compareFields(part string, journal, stored map[string]entry, ignored []string) *wasmagentv1.StoredDifference {
	for _, name := range unionNames(journal, stored) {
		if want, got := journal[name].value, stored[name].value; want != got && !slices.Contains(ignored, name) {
			return difference(part, name, "%s of the %s is %s, and the journal says %s", name, part, orNothing(got), orNothing(want))
		}
	}
	return nil
}

func orNothing(value string) string {
	if value == "" {
		return "not set"
	}
	return value
}

// NotCovered returns the names of the parts with values whose creation the journal does not record.
func (i *Inventory) NotCovered() (out []string) {
	isFound := func(e entry) bool { return e.found }
	fields := func(all map[string]entry) bool { return slices.ContainsFunc(slices.Collect(maps.Values(all)), isFound) }
	for _, part := range []struct {
		name string
		has  bool
	}{
		{"files", fields(i.files)}, {"todos", slices.ContainsFunc(i.todos, isFound)}, {"messages", slices.ContainsFunc(i.messages, isFound)},
		{"record", fields(i.record)}, {"guest", fields(i.guest)},
	} {
		if part.has {
			out = append(out, part.name)
		}
	}
	return out
}

// Parts returns the names of all parts of an agent, as [Inventory.NotCovered] uses them.
func Parts() []string { return []string{"files", "todos", "messages", "record", "guest"} }

// MatchesRecord reports whether the list was computed from the record with the given digest, which is the SHA-256 of
// the record's JSON in hexadecimal digits.
func (i *Inventory) MatchesRecord(record string) bool { return i.digest == record }
