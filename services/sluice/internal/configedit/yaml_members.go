package configedit

import (
	"errors"
	"slices"
	"strings"
)

// SetMembers sets members of an entry in a YAML map. Each value must be a bool, an int or a string. All other bytes of
// the entry stay unchanged. The error is an [*EditError] if the entry does not exist or can't be edited.
func SetMembers(data []byte, path []string, members Object) (*Change, error) {
	l := Layout{Format: YAML}
	e := Edit{Path: path, Value: members}
	if err := checkEdit(l, e); err != nil {
		return nil, err
	}
	c := &Change{After: data, layout: l, before: data}
	if err := c.setMembers(path, nodeOf(members)); err != nil {
		return nil, withSnippet(err, l, e)
	}
	return c, nil
}

func (c *Change) setMembers(path []string, members *Node) error {
	doc, err := parse(c.layout, c.After)
	if err != nil {
		return err
	}
	old := doc.tree().find(c.layout, path)
	if old == nil || old.Kind != Map {
		return &EditError{Message: "the entry does not exist, or is not a map", Suggestion: "edit the file yourself"}
	}
	source, err := doc.fragment(path)
	if err != nil {
		return err
	}
	want := old
	for _, m := range members.Members {
		if len(m.Value.Items)+len(m.Value.Members) > 0 {
			return errors.New("configedit: a member that is not a scalar")
		}
		want = want.with(Layout{}, []string{m.Name}, m.Value)
	}
	splices, err := doc.set(path, content{fragment: sourceWith(source, members)})
	if err != nil {
		return err
	}
	after, err := checked(c.layout, doc, c.After, path, want, splices)
	if err != nil {
		return err
	}
	s := step{splices: splices, entry: oldEntry{Path: slices.Clone(path), Old: &source}, ours: want.digest()}
	if s.entry.Ours, err = sourceOf(c.layout, after, path); err != nil {
		return err
	}
	c.After, c.steps = after, append(c.steps, s)
	return nil
}

// sourceWith returns the source of a block mapping with new values for the given members. It moves these members to the
// end.
func sourceWith(source string, members *Node) string {
	indent := source[:len(source)-len(strings.TrimLeft(source, " "))]
	newline := "\n"
	if strings.Contains(source, "\r\n") {
		newline = "\r\n"
	}
	var out strings.Builder
	for line := range strings.Lines(source) {
		replaced := func(m Member) bool { return strings.HasPrefix(line, indent+m.Name+":") }
		if !slices.ContainsFunc(members.Members, replaced) {
			out.WriteString(strings.TrimRight(line, "\r\n") + newline)
		}
	}
	return out.String() + indent + encodeYAML(members, style{newline: newline, indent: indent}) + newline
}
