package npx

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/sluice-mesh/sluice/services/internal/datadir"
)

// Adopt moves the complete installations in another directory to f. The caller must make sure that no process uses
// either directory. If an installation can't be moved, it stays where it is, and the error contains the reason.
func (f Folder) Adopt(other Folder) error {
	var errs []error
	for _, name := range other.names("") {
		if _, err := other.read(name); err != nil {
			continue // the installation is not complete
		}
		if err := f.adopt(other, name); err != nil {
			errs = append(errs, fmt.Errorf("move the package %s: %w", filepath.Join(string(other), name), err))
		}
	}
	return errors.Join(errs...)
}

// adopt moves one installation. If the two directories are in different file systems, adopt copies it, and the original
// stays.
func (f Folder) adopt(other Folder, name string) error {
	if err := os.MkdirAll(string(f), 0o700); err != nil {
		return err
	}
	from, to := filepath.Join(string(other), name), filepath.Join(string(f), name)
	if os.Rename(from, to) == nil {
		return nil
	}
	root, err := os.OpenRoot(from)
	if err != nil {
		return err
	}
	defer root.Close() //nolint:errcheck // only read
	copied, err := os.MkdirTemp(string(f), attemptPrefix)
	if err != nil {
		return err
	}
	// The copy must not contain files from elsewhere, because the files that npm has installed are not trusted. root.FS
	// does not follow links that lead out of the installation.
	if err := errors.Join(os.CopyFS(copied, root.FS()), syncFileSystem(copied)); err != nil {
		return errors.Join(err, datadir.RemoveAll(copied))
	}
	return os.Rename(copied, to)
}
