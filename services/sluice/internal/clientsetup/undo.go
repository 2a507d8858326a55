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

// An Undone describes what Undo did with a client's file.
type Undone struct {
	Client, Path string
	// Exact is true if the file has the very bytes that it had before init.
	Exact bool
	// Missing is true if the file does not exist any more.
	Missing bool
	// Kept contains the entries that stay, because they were changed since.
	Kept []Kept
	// Gone contains the names of entries that were removed since.
	Gone []string
	// Err is the reason for which the file could not be restored. Its entries stay.
	Err error
}

// A Kept is an entry that undo left as it is.
type Kept struct {
	Name, Reason string
	// Entry is the entry before init, and Source its source in the file. They may contain secrets.
	Entry  clientconfig.Entry
	Source string
	// Server is the name of the entry's server behind the mesh.
	Server string
}

// failed reports whether the change must stay recorded.
func (u Undone) failed() bool { return u.Err != nil || len(u.Kept) > 0 }

// add adds the result for an earlier change of the same file.
func (u *Undone) add(earlier Undone) {
	u.Exact = earlier.Exact && !u.failed()
	u.Missing = earlier.Missing
	u.Kept, u.Gone = append(u.Kept, earlier.Kept...), append(u.Gone, earlier.Gone...)
	if u.Err == nil {
		u.Err = earlier.Err
	}
}

// UndoFiles takes back the changes of clients' files, the last one first, and returns the result for each file. key is
// the key that [Change.Write] used. An entry that was changed since stays, and so does its record, unless force is true.
// If clients is not empty, only the files of these clients are restored.
func (s *State) UndoFiles(ctx context.Context, key []byte, clients []string, force bool) ([]Undone, error) {
	var out []Undone
	run := undoRun{State: s, key: key, force: force, later: make(map[string][][]string)}
	for i, change := range slices.Backward(s.Files) {
		if len(clients) > 0 && !slices.Contains(clients, change.Client) {
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

	key   []byte
	force bool
	// later contains, by file, the paths of entries in changes that were taken back. An earlier change does not restore
	// them, because they were replaced before the later change.
	later map[string][][]string
}

func (s *undoRun) undoFile(ctx context.Context, change FileChange) Undone {
	done := Undone{Client: change.Client, Path: change.Path}
	now, err := ReadFile(change.Path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		done.Missing = true
		return done
	case err != nil:
		done.Err = err
		return done
	case digest(now) == change.Manifest.Before: // init was stopped before it wrote the file
		done.Exact = true
		done.Err = s.writer(change).RemoveLeftovers(ctx, change.Path)
		return done
	}
	manifest := *change.Manifest
	if manifest.Old, err = secretstore.OpenSealed(s.key, manifest.Old, change.Path); err != nil {
		done.Err = fmt.Errorf("decrypt the old entries: %w", err)
		return done
	}
	undone, err := manifest.UndoWith(now, s.options(change))
	if err != nil {
		done.Err = err
		return done
	}
	if paths, err := manifest.Paths(); err == nil {
		s.later[change.Path] = append(s.later[change.Path], paths...)
	}
	done.add(keptAndGone(change, undone))
	if bytes.Equal(undone.Data, now) {
		return done
	}
	done.Err = s.writer(change).Replace(ctx, change.Path, now, undone.Data)
	return done
}

// options returns the options for a change of a client's file.
func (s *undoRun) options(change FileChange) configedit.UndoOptions {
	o := configedit.UndoOptions{Force: s.force}
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

// keptAndGone converts the result of an undo.
func keptAndGone(change FileChange, undone *configedit.Undone) Undone {
	out := Undone{Exact: undone.Exact}
	for _, path := range undone.Gone {
		out.Gone = append(out.Gone, path[len(path)-1])
	}
	client, _ := clientconfig.Find(change.Client)
	for _, k := range undone.Kept {
		kept := Kept{Name: k.Path[len(k.Path)-1], Reason: k.Reason, Source: k.OldSource}
		if k.Old != nil {
			kept.Entry = client.ReadEntry(kept.Name, k.Old)
		}
		if k.Ours != nil {
			args := client.ReadEntry(kept.Name, k.Ours).Args
			if at := slices.Index(args, "--server"); at >= 0 && at+1 < len(args) {
				kept.Server = args[at+1]
			}
		}
		out.Kept = append(out.Kept, kept)
	}
	return out
}

// RemoveCreated removes the files of the mesh that init created. Files that were changed since stay, and so do files
// for which keep returns true. It returns the paths of the removed and of the changed files.
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

// RemoveSecrets removes the stored secrets with remove, which must accept secrets that don't exist.
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
