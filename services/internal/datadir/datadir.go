// Package datadir locks the folder in which a role stores its state, so that two processes never write the same
// files.
package datadir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/gofrs/flock"
)

// ErrInUse means that another process has locked the folder.
var ErrInUse = errors.New("the folder is in use by another process")

// Dir is a folder that this process has locked.
type Dir struct {
	path string
	lock *flock.Flock
}

// Open creates DATA/ROLE if it does not exist, for its owner only, and locks it. An empty role means DATA itself, for
// a process that runs all roles; the roles' folders have locks of their own. Errors: [ErrInUse].
func Open(data, role string) (*Dir, error) {
	path := filepath.Join(data, role)
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("make the data folder %s: %w", path, err)
	}
	lock := flock.New(filepath.Join(path, "lock"), flock.SetPermissions(0o600))
	ok, err := lock.TryLock()
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	if !ok {
		return nil, fmt.Errorf("lock %s: %w: stop it, or choose another folder with --data", path, ErrInUse)
	}
	return &Dir{path: path, lock: lock}, nil
}

// Path returns the path of a file or folder in the folder.
func (d *Dir) Path(elem ...string) string {
	return filepath.Join(append([]string{d.path}, elem...)...)
}

// Close unlocks the folder.
func (d *Dir) Close() error { return d.lock.Unlock() }

// RemoveAll is [os.RemoveAll] for a folder in which another program may have removed the process's permissions on
// folders. It does not follow links.
func RemoveAll(dir string) error {
	if os.RemoveAll(dir) == nil {
		return nil
	}
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, _ error) error {
		if d != nil && d.IsDir() { // from Lstat, so not a link
			_ = os.Chmod(path, 0o700) //nolint:gosec // a folder needs the x bit
		}
		return nil // the error is reported below
	})
	return os.RemoveAll(dir)
}
