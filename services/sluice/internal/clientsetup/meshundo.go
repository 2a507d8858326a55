package clientsetup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/sluice-mesh/sluice/services/internal/pki"
	"github.com/sluice-mesh/sluice/services/sluice/internal/configedit"
	"github.com/sluice-mesh/sluice/services/sluice/internal/secretstore"
)

// A MeshChange is a change that `init` made to the mesh's configuration.
type MeshChange struct {
	Path string `json:"path"`
	// Created is true if there was no configuration before. In that case, the content before the first change is the
	// header that `init` writes.
	Created bool `json:"created,omitempty"`
	// Manifests describes the changes in order. The field Old of each manifest is encrypted.
	Manifests []*configedit.Manifest `json:"manifests"`
}

// RecordMesh records an edit of the mesh's configuration. The key encrypts the original entries. RecordMesh does not
// save the state.
func (s *State) RecordMesh(key []byte, path string, e *MeshEdit) error {
	change := MeshChange{Path: path, Created: e.Created}
	for _, c := range e.changes {
		m, err := c.Manifest()
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if m.Old, err = secretstore.Seal(key, m.Old, path); err != nil {
			return fmt.Errorf("%s: encrypt the old entries: %w", path, err)
		}
		change.Manifests = append(change.Manifests, m)
	}
	if len(change.Manifests) > 0 {
		s.Mesh = append(s.Mesh, change)
	}
	return nil
}

// RecordRewrite records that Sluice is about to replace the content of a file of the mesh. Without this record, undo
// would treat the new content as written by a person. If a person wrote the previous content, RecordRewrite records
// nothing.
func RecordRewrite(data, path string, before, after []byte) error {
	s, err := LoadState(data)
	if err != nil || !s.wrote(path, before) || s.wrote(path, after) {
		return err
	}
	s.Created[path] += " " + digest(after)
	return s.Save()
}

// MeshUndone is the result of UndoMesh.
type MeshUndone struct {
	// Exists is true if the configuration still exists. Deleted is true if undo has deleted it.
	Exists, Deleted bool
	// Exact is true if the configuration has the same bytes as before `init`.
	Exact bool
	// Removed contains the entries that undo removed, such as servers.notes. Restored contains the entries that `init`
	// changed and undo restored.
	Removed, Restored []string
	// Kept contains the entries that stay because they were changed after `init`.
	Kept []string
	// Rest contains all strings in the remaining configuration, such as references to secrets. Servers contains the
	// names of the servers in the remaining configuration.
	Rest, Servers []string
	// Hooks contains the clients whose hooks use the mesh.
	Hooks []string
	// Ours is true if everything that remains in the configuration was written by Sluice. In that case, the state keeps
	// the record of the file, so that a later undo can remove the file.
	Ours bool
}

// Refers reports whether the remaining configuration contains the given string.
func (u MeshUndone) Refers(reference string) bool {
	return slices.ContainsFunc(u.Rest, func(text string) bool { return strings.Contains(text, reference) })
}

// UndoMesh undoes the changes by `init` to the mesh's configuration. It removes the file if only content by Sluice
// remains and no hook needs the file. It keeps entries that hooks need.
func (s *State) UndoMesh(key []byte, path string) (MeshUndone, error) {
	undone, err := s.undoMesh(key, path)
	if err != nil {
		return undone, fmt.Errorf("undo the changes of %s: %w", path, err)
	}
	s.Mesh = nil
	if undone.Ours {
		s.staying = path
	} else {
		delete(s.Created, path)
	}
	return undone, s.Save()
}

func (s *State) undoMesh(key []byte, path string) (out MeshUndone, err error) {
	if err := RemoveTemporary(path); err != nil {
		return out, err
	}
	now, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return out, nil
	}
	if err != nil {
		return out, err
	}
	out.Hooks = hooksIn(now)
	if s.wrote(path, now) && len(out.Hooks) == 0 {
		return MeshUndone{Deleted: true}, os.Remove(path)
	}
	data, err := s.withoutInit(key, path, now, &out)
	if err != nil {
		return out, err
	}
	if len(out.Hooks) == 0 && s.onlyHeader(data) {
		return MeshUndone{Deleted: true}, os.Remove(path)
	}
	if s.createdMesh() || len(out.Hooks) > 0 { // a person or a hook still needs the operator's token
		out.Kept = nil
		if data, err = s.withoutInit(key, path, now, &out, operatorName); err != nil {
			return out, err
		}
	}
	out.describe(now, data)
	out.Ours = s.wrote(path, now)
	if string(data) == string(now) {
		return out, nil
	}
	if out.Ours {
		s.Created[path] += " " + digest(data)
		if err := s.Save(); err != nil {
			return out, err
		}
	}
	return out, pki.WriteFile(path, data, 0o600)
}

func (s *State) createdMesh() bool {
	return slices.ContainsFunc(s.Mesh, func(c MeshChange) bool { return c.Created })
}

// onlyHeader reports whether a configuration contains only the header that `init` writes to a new file.
func (s *State) onlyHeader(data []byte) bool {
	return slices.ContainsFunc(s.Mesh, func(c MeshChange) bool { return c.Created && c.Manifests[0].Before == digest(data) })
}

// withoutInit returns the configuration without the changes by `init`. It keeps the tokens of clients that have hooks,
// and the tokens with the given names. withoutInit sets the fields Exact and Kept in out.
func (s *State) withoutInit(key []byte, path string, data []byte, out *MeshUndone, keep ...string) ([]byte, error) {
	keep = append(keep, out.Hooks...)
	options := configedit.UndoOptions{Leave: func(p []string) bool {
		return len(p) == 3 && p[0] == "auth" && p[1] == "tokens" && slices.Contains(keep, p[2])
	}}
	for _, change := range slices.Backward(s.Mesh) {
		for _, m := range slices.Backward(change.Manifests) {
			manifest := *m
			var err error
			if manifest.Old, err = secretstore.OpenSealed(key, manifest.Old, path); err != nil {
				return nil, fmt.Errorf("decrypt the old entries: %w", err)
			}
			undone, err := manifest.UndoWith(data, options)
			if err != nil {
				return nil, err
			}
			data, out.Exact = undone.Data, undone.Exact
			for _, k := range undone.Kept {
				out.Kept = append(out.Kept, strings.Join(k.Path, ".")+": "+k.Reason)
			}
		}
	}
	return data, nil
}

var (
	yamlMaps  = configedit.Layout{Format: configedit.YAML}
	yamlLists = configedit.Layout{Format: configedit.YAML, NameKey: "name"}
	yamlHooks = configedit.Layout{Format: configedit.YAML, NameKey: "client"}
)

// hooksIn returns the clients that have hooks in the configuration, or nil if the configuration can't be parsed.
func hooksIn(data []byte) []string {
	root, err := configedit.Parse(yamlHooks, data)
	if err != nil {
		return nil
	}
	return entryNames(root.Entries(yamlHooks, "hooks"))
}

func entryNames(entries []configedit.Entry) []string {
	var out []string
	for _, e := range entries {
		out = append(out, e.Name)
	}
	return out
}

// describe sets Exists, Rest, Servers, Removed and Restored from the content before and after undo.
func (u *MeshUndone) describe(before, after []byte) {
	u.Exists = true
	old, err := configedit.Parse(yamlLists, before)
	if err != nil { // can't happen after an undo, which parses the content
		old = &configedit.Node{}
	}
	now, err := configedit.Parse(yamlLists, after)
	if err != nil {
		now = &configedit.Node{}
	}
	u.Rest, u.Servers = stringsIn(now), entryNames(now.Entries(yamlMaps, "servers"))
	for _, at := range [][]string{{"servers"}, {"auth", "tokens"}} {
		have := now.Entries(yamlLists, at...)
		for _, e := range old.Entries(yamlLists, at...) {
			name := strings.Join(at, ".") + "." + e.Name
			i := slices.IndexFunc(have, func(other configedit.Entry) bool { return other.Name == e.Name })
			if i < 0 {
				u.Removed = append(u.Removed, name)
			} else if !have[i].Value.Equal(e.Value) {
				u.Restored = append(u.Restored, name)
			}
		}
	}
}

// ServersIn returns the names of the servers in a mesh's configuration, or nil if the configuration can't be parsed.
func ServersIn(data []byte) []string {
	root, err := configedit.Parse(yamlMaps, data)
	if err != nil {
		return nil
	}
	return entryNames(root.Entries(yamlMaps, "servers"))
}

// stringsIn returns all strings in a tree of nodes.
func stringsIn(n *configedit.Node) []string {
	var out []string
	if n.Kind == configedit.String {
		out = append(out, n.Text)
	}
	for _, item := range n.Items {
		out = append(out, stringsIn(item)...)
	}
	for _, m := range n.Members {
		out = append(out, stringsIn(m.Value)...)
	}
	return out
}
