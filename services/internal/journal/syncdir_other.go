//go:build !windows

package journal

import (
	"errors"
	"os"
)

// syncDir syncs a directory, so that the names of new files in it survive a power failure.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
