package clientsetup

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/gofrs/flock"

	"github.com/sluice-mesh/sluice/services/internal/pki"
	"github.com/sluice-mesh/sluice/services/sluice/internal/configedit"
	"github.com/sluice-mesh/sluice/services/sluice/internal/secretstore"
)

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }

// stateVersion is the version of the format of State.
const stateVersion = 1

// A State records the changes by `init`, so that undo can restore the files. It is saved before each change, so it
// covers all changes even if a process was killed.
type State struct {
	Version int `json:"version"`
	// Begun is true from the time before `init` writes its first file until undo has removed the last file.
	Begun bool `json:"begun,omitempty"`
	// Elsewhere is true if all changes are for remote meshes. In that case, undo does not change the person's own mesh.
	Elsewhere bool `json:"elsewhere,omitzero"`
	// Files contains the changes to clients' files in order.
	Files []FileChange `json:"files,omitempty"`
	// Mesh contains the changes to the mesh's configuration in order.
	Mesh []MeshChange `json:"mesh,omitempty"`
	// Created contains the paths of the mesh files that `init` created. The values are the SHA-256 digests, separated by
	// spaces, of the contents that `init` wrote. A file with any other content is not removed.
	Created map[string]string `json:"created,omitempty"`
	// Store is the kind of store that contains the secrets and the key that encrypts the original entries.
	Store secretstore.Kind `json:"store,omitempty"`
	// Secrets contains references to stored secrets.
	Secrets []string `json:"secrets,omitempty"`

	path   string
	settle time.Duration
	// stored is the serialized state at the last read or save, or nil if there was none.
	stored []byte
	// staying is a path in Created that RemoveCreated must keep. It may be empty.
	staying string
}

// A FileChange is one change to a client's file.
type FileChange struct {
	Client string `json:"client"`
	Path   string `json:"path"`
	// Link is true if Path was a symbolic link.
	Link bool `json:"link,omitzero"`
	// Within is the project directory that contains the file. It is empty for a file of the user.
	Within string `json:"within,omitempty"`
	// Entries contains the names of the changed entries.
	Entries []string `json:"entries"`
	// Manifest describes the change. Its field Old is encrypted.
	Manifest *configedit.Manifest `json:"manifest"`
}

// LoadState reads the state in a data directory. If no state is stored there, it returns an empty state.
func LoadState(data string) (*State, error) {
	s := &State{Version: stateVersion, Created: make(map[string]string), path: filepath.Join(data, "init", "state.json"), settle: settle}
	raw, err := os.ReadFile(s.path)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read what init has changed: %w", err)
	}
	s.stored = raw
	if err := json.Unmarshal(raw, s); err != nil {
		return nil, fmt.Errorf("%s: read what init has changed: %w", s.path, err)
	}
	if s.Version != stateVersion {
		return nil, fmt.Errorf("%s has the version %d, which this program does not know: use the program that wrote it", s.path, s.Version)
	}
	if s.Created == nil {
		s.Created = make(map[string]string)
	}
	return s, nil
}

// Empty reports whether the state records no changes.
func (s *State) Empty() bool {
	return !s.Begun && len(s.Files)+len(s.Mesh)+len(s.Created)+len(s.Secrets) == 0
}

// ErrStateChanged means that another process has changed the stored state.
var ErrStateChanged = errors.New("another command has changed the record of init meanwhile, so this one stops: run it again")

// Save stores the state, or removes the file if the state is empty. If another process has changed the stored state
// since this process read it, Save does not overwrite it and returns [ErrStateChanged]. The stored state may contain
// the only copy of an entry.
func (s *State) Save() error {
	return s.locked(func() error {
		if s.Empty() {
			if err := os.Remove(s.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("remove the record of init: %w", err)
			}
			s.stored = nil
			return nil
		}
		raw, err := json.Marshal(s, json.Deterministic(true), jsontext.WithIndent("  "))
		if err != nil {
			return err
		}
		if err := pki.WriteFile(s.path, raw, 0o600); err != nil {
			return fmt.Errorf("record what init changes: %w", err)
		}
		s.stored = raw
		return nil
	})
}

// locked calls f while no other process can change the stored state. If another process has changed the stored state
// since this process read it, locked returns an error instead. If the state is empty and its directory does not exist,
// locked does nothing.
func (s *State) locked(f func() error) (err error) {
	if !s.Empty() {
		if err := os.MkdirAll(filepath.Dir(s.path), 0o700); err != nil {
			return fmt.Errorf("record what init changes: %w", err)
		}
	} else if !exists(filepath.Dir(s.path)) {
		return nil
	}
	lock := flock.New(s.lockPath(), flock.SetPermissions(0o600))
	if err := lock.Lock(); err != nil {
		return fmt.Errorf("lock the record of init: %w", err)
	}
	defer func() { err = errors.Join(err, lock.Unlock()) }()
	stored, err := os.ReadFile(s.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read what init has changed: %w", err)
	}
	if !bytes.Equal(stored, s.stored) {
		return ErrStateChanged
	}
	return f()
}

// lockPath returns the path of the lock file that protects the state and the clients' files.
func (s *State) lockPath() string { return filepath.Join(filepath.Dir(s.path), "lock") }

// Begin records that `init` is about to write files.
func (s *State) Begin() error {
	s.Begun = true
	return s.Save()
}

// End records that undo has removed all files.
func (s *State) End() error {
	s.Begun = false
	if err := s.Save(); err != nil {
		return err
	}
	return s.locked(func() error { return RemoveTemporary(s.path) })
}

// Create creates or replaces a file of the mesh. It first records the digest of the content. If a person wrote the
// existing file, Create records no digest, so that undo does not remove the file.
func (s *State) Create(path string, content []byte) error {
	old, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		s.Created[path] = digest(content)
	case err != nil:
		return fmt.Errorf("replace a file of the mesh: %w", err)
	case s.wrote(path, old): // if this process is killed before it writes, the file still has the old content
		s.Created[path] = digest(old) + " " + digest(content)
	default:
		s.Created[path] = ""
	}
	if err := s.Save(); err != nil {
		return err
	}
	return pki.WriteFile(path, content, 0o600)
}

// wrote reports whether `init` wrote this content to the file.
func (s *State) wrote(path string, content []byte) bool {
	return slices.Contains(strings.Fields(s.Created[path]), digest(content))
}

func digest(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}
