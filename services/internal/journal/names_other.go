//go:build !windows

package journal

import (
	"errors"
	"os"
)

// syncDir makes the names of new files durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
