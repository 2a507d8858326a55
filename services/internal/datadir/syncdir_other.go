//go:build !windows

package datadir

import (
	"errors"
	"os"
)

// SyncDir syncs a directory, so that the names of new files in it survive a power failure.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
