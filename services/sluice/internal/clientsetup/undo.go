package clientsetup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/sluice-mesh/sluice/services/sluice/internal/secretstore"
)

// An Undone describes what Undo did with a client's file.
type Undone struct {
	Client, Path string
	// Exact is true if the file has the very bytes that it had before init.
	Exact bool
	// Kept contains entries that stay, with the reasons, because they were changed since.
	Kept []string
	// Err is the reason for which the file could not be restored. Its entries stay.
	Err error
}

// failed reports whether the change must stay recorded.
func (u Undone) failed() bool { return u.Err != nil || len(u.Kept) > 0 }

// UndoFiles takes back the changes of clients' files, the last one first. key is the key that [Change.Write] used. An
// entry that was changed since stays, and so does its record. If clients is not empty, only the files of these clients
// are restored.
func (s *State) UndoFiles(ctx context.Context, key []byte, clients []string) ([]Undone, error) {
	var out []Undone
	for i, change := range slices.Backward(s.Files) {
		if len(clients) > 0 && !slices.Contains(clients, change.Client) {
			continue
		}
		done := s.undoFile(ctx, key, change)
		out = append(out, done)
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

func (s *State) undoFile(ctx context.Context, key []byte, change FileChange) Undone {
	done := Undone{Client: change.Client, Path: change.Path}
	now, err := ReadFile(change.Path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return done // nothing of ours is left
	case err != nil:
		done.Err = err
		return done
	case digest(now) == change.Manifest.Before: // init was stopped before it wrote the file
		done.Exact = true
		done.Err = s.writer(change).RemoveLeftovers(ctx, change.Path)
		return done
	}
	manifest := *change.Manifest
	if manifest.Old, err = secretstore.OpenSealed(key, manifest.Old, change.Path); err != nil {
		done.Err = fmt.Errorf("decrypt the old entries: %w", err)
		return done
	}
	undone, err := manifest.Undo(now)
	if err != nil {
		done.Err = err
		return done
	}
	for _, kept := range undone.Kept {
		done.Kept = append(done.Kept, strings.Join(kept.Path, ".")+": "+kept.Reason)
	}
	done.Exact = undone.Exact
	if bytes.Equal(undone.Data, now) {
		return done
	}
	done.Err = s.writer(change).Replace(ctx, change.Path, now, undone.Data)
	return done
}

// RemoveCreated removes the files of the mesh that init created, and returns the paths of those that stay because they
// were changed since.
func (s *State) RemoveCreated() (changed []string, err error) {
	// The configuration comes before its policies, and so a later init never finds it without them.
	for _, path := range slices.Backward(sortedKeys(s.Created)) {
		if err := removeTemporary(path); err != nil {
			return changed, fmt.Errorf("remove what init created: %w", err)
		}
		content, err := os.ReadFile(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return changed, fmt.Errorf("remove what init created: %w", err)
		case !s.wrote(path, content):
			changed = append(changed, path)
		default:
			if err := os.Remove(path); err != nil {
				return changed, fmt.Errorf("remove what init created: %w", err)
			}
		}
		delete(s.Created, path)
		if err := s.Save(); err != nil {
			return changed, err
		}
	}
	return changed, nil
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
