package configedit

import (
	"errors"
	"fmt"
	"slices"

	"github.com/go-json-experiment/json"
)

// manifestVersion is the version of the format of a [Manifest].
const manifestVersion = 1

// A Manifest describes a [Change] so that the change can be undone later. It can be stored as JSON.
type Manifest struct {
	Version int    `json:"version"`
	Layout  Layout `json:"layout"`
	// Before and After are the SHA-256 digests, in hexadecimal, of the file before and after the change.
	Before string `json:"before"`
	After  string `json:"after"`
	// Missing is true if the file did not exist before the change.
	Missing bool `json:"missing,omitempty"`
	// Ours contains the digests of the values that the change wrote, in the order of the edits. The digest is empty if the
	// edit removed an entry.
	Ours []string `json:"ours"`
	// Old contains the replaced bytes and the old entries, which may include secrets. The format is private to this
	// package. The caller may encrypt Old in a stored manifest, and must decrypt it before [Manifest.Undo].
	Old []byte `json:"old"`
}

// oldFile is the content of Manifest.Old.
type oldFile struct {
	Entries []oldEntry `json:"entries"`
	// Steps contains, for each edit, the splices that restore the bytes that the edit replaced.
	Steps [][]oldSplice `json:"steps"`
}

type oldEntry struct {
	Path []string `json:"path"`
	// Old is the source of the old value, or nil if the entry did not exist.
	Old *string `json:"old,omitempty"`
	// Ours is the source of the new value, or nil if the edit removed the entry.
	Ours *string `json:"ours,omitempty"`
	// Created is the number of containers that the edit created.
	Created int `json:"created,omitempty"`
}

type oldSplice struct {
	Start int    `json:"start"`
	End   int    `json:"end"`
	Text  []byte `json:"text"`
}

// Manifest returns the manifest of a change.
func (c *Change) Manifest() (*Manifest, error) {
	m := &Manifest{Version: manifestVersion, Layout: c.layout, Before: digest(c.before), After: digest(c.After)}
	var old oldFile
	data := c.before
	for _, s := range c.steps {
		var back []oldSplice
		shift := 0
		for _, sp := range s.splices {
			start := sp.start + shift
			back = append(back, oldSplice{start, start + len(sp.text), data[sp.start:sp.end]})
			shift += len(sp.text) - (sp.end - sp.start)
		}
		data = spliced(data, s.splices)
		old.Steps, old.Entries, m.Ours = append(old.Steps, back), append(old.Entries, s.entry), append(m.Ours, s.ours)
	}
	var err error
	if m.Old, err = json.Marshal(old); err != nil {
		return nil, fmt.Errorf("encode the old entries: %w", err)
	}
	return m, nil
}

// Undone is the result of [Manifest.Undo].
type Undone struct {
	// Data is the new content of the file.
	Data []byte
	// Exact is true if Data consists of exactly the bytes before the change.
	Exact bool
	// Kept contains the entries that were not restored because they or their comments were changed after the change.
	Kept []Kept
	// Gone contains the entries that the change wrote and that no longer exist. Their Reason is empty.
	Gone []Kept

	options UndoOptions
}

// Kept is an entry that [Manifest.Undo] did not restore.
type Kept struct {
	Path   []string
	Reason string
	// Old is the value of the entry before the change, and Ours is its value after the change. A value is nil if the entry
	// did not exist. OldSource is the source of Old.
	Old, Ours *Node
	OldSource string
}

// Edited returns the entries that the change edited, in the order of the edits. Their Reason is empty.
func (m *Manifest) Edited() ([]Kept, error) {
	var old oldFile
	if err := json.Unmarshal(m.Old, &old); err != nil {
		return nil, errors.New("the manifest is damaged: its old entries can't be read")
	}
	var out []Kept
	for _, e := range old.Entries {
		out = append(out, e.kept(m.Layout, ""))
	}
	return out, nil
}

// Undo undoes a change, given the current content of the file. If this is the content that the change wrote, the result
// is exactly the content before the change. Otherwise, Undo compares each entry with the value that the change wrote.
// It restores the old value if they are equal and no comment was added to the entry. It keeps all other entries.
func (m *Manifest) Undo(now []byte) (*Undone, error) { return m.UndoWith(now, UndoOptions{}) }

// UndoWith is like [Manifest.Undo] with options.
func (m *Manifest) UndoWith(now []byte, o UndoOptions) (*Undone, error) {
	var old oldFile
	if m.Version != manifestVersion {
		return nil, fmt.Errorf("the manifest has version %d, and this program reads version %d", m.Version, manifestVersion)
	}
	if err := json.Unmarshal(m.Old, &old); err != nil || len(old.Entries) != len(m.Ours) || len(old.Steps) != len(m.Ours) {
		return nil, errors.New("the manifest is damaged: its old entries can't be read")
	}
	if len(m.Ours) > MaxEdits {
		return nil, fmt.Errorf("the manifest is damaged: it has %d edits, and a change can have %d", len(m.Ours), MaxEdits)
	}
	if digest(now) == m.After && !slices.ContainsFunc(old.Entries, o.leave) {
		data, err := old.restore(now)
		if err != nil || digest(data) != m.Before {
			return nil, errors.New("the manifest is damaged: it does not restore the file")
		}
		return &Undone{Data: data, Exact: true}, nil
	}
	u := &Undone{Data: now, options: o}
	if _, err := parse(m.Layout, now); err != nil {
		return nil, err
	}
	for i, entry := range slices.Backward(old.Entries) {
		if o.leave(entry) {
			continue
		}
		err := u.undo(m.Layout, entry, m.Ours[i])
		if refused, ok := errors.AsType[*EditError](err); ok {
			u.keep(m.Layout, entry, refused.Error())
		} else if err != nil {
			return nil, err
		}
	}
	u.Exact = digest(u.Data) == m.Before
	return u, nil
}

// restore undoes all steps, the last step first.
func (o *oldFile) restore(data []byte) ([]byte, error) {
	for _, step := range slices.Backward(o.Steps) {
		var splices []splice
		at := 0
		for _, s := range step {
			if s.Start < at || s.End < s.Start || s.End > len(data) {
				return nil, errors.New("a range is invalid")
			}
			at = s.End
			splices = append(splices, splice{s.Start, s.End, string(s.Text)})
		}
		data = spliced(data, splices)
	}
	return data, nil
}

// undo undoes the change to one entry.
func (u *Undone) undo(l Layout, entry oldEntry, ours string) error {
	if len(entry.Path) == 0 {
		return errors.New("the manifest is damaged: an entry has no path")
	}
	doc, err := parse(l, u.Data)
	if err != nil {
		return err
	}
	var old *Node
	if entry.Old != nil {
		if old, err = parseFragment(l, entry.Path, *entry.Old); err != nil {
			return err
		}
	}
	have := doc.tree().find(l, entry.Path)
	switch {
	case have == nil && old == nil, have != nil && old != nil && have.equal(old):
		return nil
	case have == nil && ours != "":
		u.Gone = append(u.Gone, entry.kept(l, ""))
		return nil
	case have != nil && have.digest() != ours:
		return u.undoChanged(l, doc, entry, old, have)
	case old == nil:
		return u.removeCreated(l, doc, entry)
	}
	return u.restore(l, doc, entry, old)
}

// restore replaces an entry with its old source.
func (u *Undone) restore(l Layout, doc syntax, entry oldEntry, old *Node) error {
	splices, err := doc.set(entry.Path, content{fragment: *entry.Old})
	if err != nil {
		return err
	}
	added := true
	if entry.Ours != nil && doc.tree().find(l, entry.Path) != nil {
		source, err := doc.fragment(entry.Path)
		added = err != nil || source != *entry.Ours
	}
	if !added {
		return u.replace(l, doc, entry.Path, old, splices) // no comment was added to the entry
	}
	if err := u.checkComments(l, splices); err != nil {
		return err
	}
	return u.replace(l, doc, entry.Path, old, splices)
}

// checkComments returns an error if the splices would remove a comment, unless undo is forced.
func (u *Undone) checkComments(l Layout, splices []splice) error {
	if u.options.Force {
		return nil
	}
	return keepComments(l.Format, u.Data, splices)
}

// replace applies splices. It returns an error unless the entry at path has the value want afterwards.
func (u *Undone) replace(l Layout, doc syntax, path []string, want *Node, splices []splice) error {
	after, err := checked(l, doc, u.Data, path, want, splices)
	if err != nil {
		return err
	}
	u.Data = after
	return nil
}

func (u *Undone) keep(l Layout, entry oldEntry, reason string) {
	u.Kept = append(u.Kept, entry.kept(l, reason))
}

func (e oldEntry) kept(l Layout, reason string) Kept {
	k := Kept{Path: e.Path, Reason: reason}
	if e.Old != nil {
		k.OldSource = *e.Old
		k.Old, _ = parseFragment(l, e.Path, *e.Old) // Undo reports the error
	}
	k.Ours, _ = e.ours(l)
	return k
}

// removeCreated removes an entry. Then it removes the containers that the change created, if they are empty.
func (u *Undone) removeCreated(l Layout, doc syntax, entry oldEntry) error {
	if err := u.remove(l, doc, entry.Path); err != nil {
		return err
	}
	l.NameKey = "" // the containers are members of maps
	for n := len(entry.Path) - 1; n > 0 && n >= len(entry.Path)-entry.Created; n-- {
		if !u.removeIfEmpty(l, entry.Path[:n]) {
			break
		}
	}
	return nil
}

// removeIfEmpty removes a container if it is empty, and reports whether it removed the container. It keeps a container
// that can't be removed.
func (u *Undone) removeIfEmpty(l Layout, path []string) bool {
	doc, err := parse(l, u.Data)
	if err != nil {
		return false
	}
	c := doc.tree().Get(path...)
	return c != nil && c.empty() && u.remove(l, doc, path) == nil
}

func (u *Undone) remove(l Layout, doc syntax, path []string) error {
	splices, err := doc.remove(path)
	if err != nil {
		return err
	}
	if err := u.checkComments(l, splices); err != nil {
		return err
	}
	return u.replace(l, doc, path, nil, splices)
}

// parseFragment parses the source of an entry without the rest of its file.
func parseFragment(l Layout, path []string, fragment string) (*Node, error) {
	doc, err := parse(Layout{Format: l.Format}, []byte(fragment))
	if err != nil {
		return nil, errors.New("the manifest is damaged: an old entry can't be read")
	}
	switch {
	case l.Format == TOML:
		if n := doc.tree().Get(path...); n != nil {
			return n, nil
		}
		return nil, errors.New("the manifest is damaged: an old entry has another name")
	case l.Format == YAML && fragment == "":
		return &Node{Kind: Null}, nil
	default:
		return doc.tree(), nil
	}
}
