package configedit

import "slices"

// UndoOptions specifies how [Manifest.UndoWith] handles entries that were modified after the change. With the zero
// value, it does not change these entries.
type UndoOptions struct {
	// Force makes undo restore the old entries even if they were modified after the change.
	Force bool
	// Owned reports whether a member of an entry belongs to the change, such as the command of a server. All other members
	// belong to the program that reads the file. If only those other members were modified, they keep their new values,
	// and the rest of the entry is restored. If Owned is nil, all members belong to the change.
	Owned func(member string) bool
	// Default reports whether a member means the same as a missing member, for example an empty environment.
	Default func(member string, value *Node) bool
	// Leave reports whether to keep an entry that the change wrote. If Leave is nil, no such entry is kept.
	Leave func(path []string) bool
}

func (o UndoOptions) owned(member string) bool { return o.Owned == nil || o.Owned(member) }

func (o UndoOptions) leave(e oldEntry) bool { return o.Leave != nil && o.Leave(e.Path) }

// same reports whether two values of a member have the same meaning. A value is nil if the member is missing.
func (o UndoOptions) same(member string, a, b *Node) bool {
	absent := func(n *Node) bool { return n == nil || o.Default != nil && o.Default(member, n) }
	return absent(a) && absent(b) || a != nil && b != nil && a.equal(b)
}

// restored reports whether the members that belong to the change have their old values.
func (o UndoOptions) restored(old, have *Node) bool {
	if o.Owned == nil || old == nil || old.Kind != Map || have.Kind != Map {
		return false
	}
	return !slices.ContainsFunc(slices.Concat(old.Members, have.Members), func(m Member) bool {
		return o.owned(m.Name) && !o.same(m.Name, old.member(m.Name), have.member(m.Name))
	})
}

// merged returns the old value of an entry with later modifications of members that do not belong to the change. It
// returns false if other members were modified.
func (o UndoOptions) merged(old, ours, have *Node) (*Node, bool) {
	if old == nil || ours == nil || old.Kind != Map || ours.Kind != Map || have.Kind != Map {
		return nil, false
	}
	out := &Node{Kind: Map, mark: old.mark}
	for _, m := range old.Members {
		wrote, now := ours.member(m.Name), have.member(m.Name)
		switch {
		case o.same(m.Name, wrote, now):
			out.Members = append(out.Members, m)
		case o.owned(m.Name) || wrote == nil || !wrote.equal(m.Value):
			return nil, false
		case now != nil:
			out.Members = append(out.Members, Member{m.Name, now})
		}
	}
	for _, m := range slices.Concat(ours.Members, have.Members) {
		wrote, now := ours.member(m.Name), have.member(m.Name)
		switch {
		case old.member(m.Name) != nil, out.member(m.Name) != nil, o.same(m.Name, wrote, now):
		case o.owned(m.Name) || wrote != nil:
			return nil, false
		default:
			out.Members = append(out.Members, m)
		}
	}
	return out, true
}

// undoChanged undoes the change to an entry that was modified after the change.
func (u *Undone) undoChanged(l Layout, doc syntax, entry oldEntry, old, have *Node) error {
	merged := old
	if !u.options.Force {
		if u.options.restored(old, have) {
			return nil
		}
		ours, err := entry.ours(l)
		if err != nil {
			return err
		}
		var ok bool
		if merged, ok = u.options.merged(old, ours, have); !ok {
			u.keep(l, entry, "it was changed")
			return nil
		}
	}
	if old == nil {
		return u.removeCreated(l, doc, entry)
	}
	if l.Format != JSON && !merged.equal(old) {
		return u.setMerged(l, doc, entry, merged)
	}
	if err := u.restore(l, doc, entry, old); err != nil {
		return err
	}
	return u.setMembers(l, entry.Path, old, merged)
}

// ours returns the value that the change wrote, or nil if this value is not recorded.
func (e oldEntry) ours(l Layout) (*Node, error) {
	if e.Ours == nil {
		return nil, nil
	}
	return parseFragment(l, e.Path, *e.Ours)
}

// setMerged writes an entry in this package's own format, without comments. Therefore setMerged does not change the
// entry if the old value contains a comment.
func (u *Undone) setMerged(l Layout, doc syntax, entry oldEntry, merged *Node) error {
	canWrite := checkValue(l.Format, merged) == nil && !hasComment(l.Format, []byte(*entry.Old))
	if !canWrite {
		u.keep(l, entry, "it was changed")
		return nil
	}
	splices, err := doc.set(entry.Path, content{value: merged})
	if err != nil {
		return err
	}
	if err := u.checkComments(l, splices); err != nil {
		return err
	}
	return u.replace(l, doc, entry.Path, merged, splices)
}

// setMembers sets the members of a restored JSON entry whose merged values differ from the old values.
func (u *Undone) setMembers(l Layout, path []string, old, merged *Node) error {
	var edits []Edit
	for _, m := range merged.Members {
		if have := old.member(m.Name); have == nil || !have.equal(m.Value) {
			edits = append(edits, Edit{Path: slices.Concat(path, []string{m.Name}), Value: m.Value})
		}
	}
	for _, m := range old.Members {
		if merged.member(m.Name) == nil {
			edits = append(edits, Edit{Path: slices.Concat(path, []string{m.Name})})
		}
	}
	if len(edits) == 0 {
		return nil
	}
	change, err := Apply(l, u.Data, edits...)
	if err != nil {
		return err
	}
	u.Data = change.After
	return nil
}
