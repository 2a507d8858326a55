// Package datadir locks the directory in which a service stores its state, so that two processes can't write the same
// files. It also syncs and removes directories.
package datadir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/gofrs/flock"
)

// ErrInUse means that another process has locked the directory.
var ErrInUse = errors.New("the folder is in use by another process")

// Dir is a directory that this process has locked.
type Dir struct {
	path string
	lock *flock.Flock
}

// Open creates the directory DATA/ROLE if it does not exist, with access only for its owner, and locks it. ROLE is the
// role of a service in the mesh, such as policy. If role is empty, the directory is DATA. A process that runs all
// services locks DATA in addition to the services' directories. If another process has locked the directory, Open
// returns [ErrInUse].
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

// Path returns the path of a file or directory inside the directory.
func (d *Dir) Path(elem ...string) string {
	return filepath.Join(append([]string{d.path}, elem...)...)
}

// Close unlocks the directory.
func (d *Dir) Close() error { return d.lock.Unlock() }

// RemoveAll is like [os.RemoveAll], but also works if another program has removed this process's permissions on
// directories inside dir. It does not follow links.
func RemoveAll(dir string) error {
	parent, err := os.OpenRoot(filepath.Dir(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(RemoveAllIn(parent, filepath.Base(dir)), parent.Close())
}

// RemoveAllIn is like [RemoveAll] for a file or directory in an open directory.
func RemoveAllIn(parent *os.Root, name string) error {
	if parent.RemoveAll(name) == nil {
		return nil
	}
	if info, err := parent.Lstat(name); err != nil || !info.IsDir() { // WalkDir would follow a link
		return parent.RemoveAll(name)
	}
	_ = fs.WalkDir(parent.FS(), name, func(path string, d fs.DirEntry, _ error) error {
		if d != nil && d.IsDir() { // a link is not a directory
			_ = parent.Chmod(path, 0o700)
		}
		return nil // the second RemoveAll reports the error
	})
	return parent.RemoveAll(name)
}
