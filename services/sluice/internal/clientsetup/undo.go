package clientsetup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"github.com/sluice-mesh/sluice/services/sluice/internal/clientconfig"
	"github.com/sluice-mesh/sluice/services/sluice/internal/configedit"
	"github.com/sluice-mesh/sluice/services/sluice/internal/secretstore"
)

// An Undone describes the result of undo for a client's file.
type Undone struct {
	Client, Path string
	// Exact is true if the file has exactly the bytes that it had before `init`.
	Exact bool
	// Missing is true if the file no longer exists.
	Missing bool
	// Kept contains the entries that undo did not restore because they were changed after `init`.
	Kept []Kept
	// Gone contains the names of entries that were removed after `init`.
	Gone []string
	// Held contains entries that were removed after `init`, but that may only have been renamed or moved. The record keeps
	// the original form of these entries, because a later undo may need it.
	Held []Kept
	// Err is the reason why the file could not be restored. In that case, undo did not change the file's entries.
	Err error
}

// A Kept is an entry that undo did not restore.
type Kept struct {
	Name, Reason string
	// Entry is the entry as it was before `init`. Source is the text of this entry in the file. Both may contain
	// secrets.
	Entry  clientconfig.Entry
	Source string
	// Server is the name that the entry's server has in the mesh.
	Server string
}

// failed reports whether undo is incomplete, so that the record of the change is still necessary.
func (u Undone) failed() bool { return u.Err != nil || len(u.Kept)+len(u.Held) > 0 }

// add merges the result of undoing an earlier change to the same file into u.
func (u *Undone) add(earlier Undone) {
	u.Exact = earlier.Exact && !u.failed()
	u.Missing = earlier.Missing
	u.Kept, u.Gone = append(u.Kept, earlier.Kept...), append(u.Gone, earlier.Gone...)
	u.Held = append(u.Held, earlier.Held...)
	if u.Err == nil {
		u.Err = earlier.Err
	}
}

// UndoOptions contains the options of [State.UndoFiles].
type UndoOptions struct {
	// Clients contains the IDs of the clients whose files are restored. If it is empty, the files of all clients are
	// restored.
	Clients []string
	// Force makes undo also restore entries that were changed after `init`. The records of entries that can't be restored
	// are removed.
	Force bool
	// Scanned contains the files of all clients, from [State.Scan].
	Scanned []Found
}

// UndoFiles undoes the changes to clients' files, last change first, and returns the result for each file. The key is
// the key for [Change.Write]. Unless o.Force is set, UndoFiles does not change an entry that was changed after `init`,
// and keeps the record of its original form. It also keeps the record of a missing entry that may only have been
// renamed or moved.
func (s *State) UndoFiles(ctx context.Context, key []byte, o UndoOptions) ([]Undone, error) {
	var out []Undone
	run := undoRun{State: s, UndoOptions: o, key: key, later: make(map[string][][]string)}
	run.recordStarts()
	for i, change := range slices.Backward(s.Files) {
		if len(o.Clients) > 0 && !slices.Contains(o.Clients, change.Client) {
			continue
		}
		done := run.undoFile(ctx, change)
		if at := slices.IndexFunc(out, func(u Undone) bool { return u.Path == done.Path }); at >= 0 {
			out[at].add(done)
		} else {
			out = append(out, done)
		}
		if done.failed() {
			continue
		}
		s.Files = slices.Delete(s.Files, i, i+1)
		if err := s.Save(); err != nil {
			return out, err
		}
	}
	return out, nil
}

// undoRun is one run of [State.UndoFiles].
type undoRun struct {
	*State
	UndoOptions

	key []byte
	// later contains, for each file, the entries for which this run has already undone a later change. Undoing an earlier
	// change must not restore these entries again, because they were replaced between the two changes.
	later map[string][][]string
	// starts contains the server that each recorded entry starts.
	starts map[place]clientconfig.Relay
}

func (s *undoRun) undoFile(ctx context.Context, change FileChange) Undone {
	done := Undone{Client: change.Client, Path: change.Path}
	now, err := ReadFile(change.Path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return s.undoMissing(ctx, change)
	case err != nil:
		done.Err = err
		return done
	case digest(now) == change.Manifest.Before: // init was stopped before it wrote the file
		done.Exact = true
		done.Err = s.writer(change).RemoveLeftovers(ctx, change.Path)
		return done
	}
	manifest, err := s.manifest(change)
	if err != nil {
		done.Err = err
		return done
	}
	undone, err := manifest.UndoWith(now, s.options(change))
	if err != nil {
		done.Err = err
		return done
	}
	if edited, err := manifest.Edited(); err == nil {
		for _, e := range edited {
			s.later[change.Path] = append(s.later[change.Path], e.Path)
		}
	}
	done.add(s.result(change, undone))
	switch {
	case !bytes.Equal(undone.Data, now):
		done.Err = s.writer(change).Replace(ctx, change.Path, now, undone.Data)
	case len(undone.Kept) == 0:
		done.Err = s.settled(ctx, change.Path, now)
	}
	return done
}

// undoMissing returns the result for a file that does not exist.
func (s *undoRun) undoMissing(ctx context.Context, change FileChange) Undone {
	done := Undone{Client: change.Client, Path: change.Path, Missing: true}
	if s.Force {
		return done
	}
	if done.Err = s.settled(ctx, change.Path, nil); done.Err != nil {
		return done
	}
	manifest, err := s.manifest(change)
	if err != nil {
		done.Err = err
		return done
	}
	edited, err := manifest.Edited()
	if err != nil {
		done.Err = err
		return done
	}
	for _, e := range edited {
		if reason := s.mayReturn(change, e); reason != "" {
			e.Reason = reason
			done.Held = append(done.Held, keptOf(change, e))
		}
	}
	return done
}

// manifest returns the manifest of a change and decrypts its original entries.
func (s *undoRun) manifest(change FileChange) (m configedit.Manifest, err error) {
	m = *change.Manifest
	if m.Old, err = secretstore.OpenSealed(s.key, m.Old, change.Path); err != nil {
		return m, fmt.Errorf("decrypt the old entries: %w", err)
	}
	return m, nil
}

// options returns the options for undoing a change to a client's file.
func (s *undoRun) options(change FileChange) configedit.UndoOptions {
	o := configedit.UndoOptions{Force: s.Force}
	if later := s.later[change.Path]; len(later) > 0 {
		o.Leave = func(path []string) bool {
			return slices.ContainsFunc(later, func(p []string) bool { return slices.Equal(p, path) })
		}
	}
	if client, ok := clientconfig.Find(change.Client); ok {
		o.Owned, o.Default = client.IsConnection, client.IsDefault
	}
	return o
}

// result converts the result of undoing one change to an Undone.
func (s *undoRun) result(change FileChange, undone *configedit.Undone) Undone {
	out := Undone{Exact: undone.Exact}
	for _, k := range undone.Gone {
		if k.Reason = s.mayReturn(change, k); k.Reason != "" {
			out.Held = append(out.Held, keptOf(change, k))
		} else {
			out.Gone = append(out.Gone, k.Path[len(k.Path)-1])
		}
	}
	for _, k := range undone.Kept {
		out.Kept = append(out.Kept, keptOf(change, k))
	}
	return out
}

func keptOf(change FileChange, k configedit.Kept) Kept {
	client, _ := clientconfig.Find(change.Client)
	kept := Kept{Name: k.Path[len(k.Path)-1], Reason: k.Reason, Source: k.OldSource, Server: relayOf(change, k).Server}
	if k.Old != nil {
		kept.Entry = client.ReadEntry(kept.Name, k.Old)
	}
	return kept
}

// RemoveCreated removes the files of the mesh that `init` created. It keeps files that were changed after `init`, and
// files for which keep returns true. It returns the paths of the removed files and of the changed files.
func (s *State) RemoveCreated(keep func(path string) bool) (removed, changed []string, err error) {
	for _, path := range slices.Backward(sortedKeys(s.Created)) {
		if path == s.staying {
			continue
		}
		if err := RemoveTemporary(path); err != nil {
			return removed, changed, fmt.Errorf("remove what init created: %w", err)
		}
		content, err := os.ReadFile(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return removed, changed, fmt.Errorf("remove what init created: %w", err)
		case keep(path):
		case !s.wrote(path, content):
			changed = append(changed, path)
		default:
			if err := os.Remove(path); err != nil {
				return removed, changed, fmt.Errorf("remove what init created: %w", err)
			}
			removed = append(removed, path)
		}
		delete(s.Created, path)
		if err := s.Save(); err != nil {
			return removed, changed, err
		}
	}
	return removed, changed, nil
}

// RemoveSecrets calls remove for each stored secret. remove must not fail if the secret does not exist.
func (s *State) RemoveSecrets(ctx context.Context, remove func(ctx context.Context, reference string) error) error {
	for len(s.Secrets) > 0 {
		if err := remove(ctx, s.Secrets[0]); err != nil {
			return fmt.Errorf("remove a stored secret: %w", err)
		}
		s.Secrets = s.Secrets[1:]
		if err := s.Save(); err != nil {
			return err
		}
	}
	return nil
}
