package cli

import (
	"errors"
	"fmt"
	"os"
)

// newTokenFile is a new file for a token's secret. A nil newTokenFile writes nothing.
type newTokenFile struct{ *os.File }

// createTokenFile creates the file for a token, unless the path is empty. It must be called before the token is
// created. Otherwise a token could be created that can't be written.
func createTokenFile(path string) (*newTokenFile, error) {
	if path == "" {
		return nil, nil //nolint:nilnil // there is no file
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, fmt.Errorf("no token was created or changed, because its file can't be created: %w", err)
	}
	return &newTokenFile{file}, nil
}

// discard removes the file.
func (f *newTokenFile) discard() error {
	if f == nil {
		return nil
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

// write writes the token's secret and closes the file.
func (f *newTokenFile) write(secret string) error {
	if f == nil {
		return nil
	}
	_, err := fmt.Fprintln(f, secret)
	return errors.Join(err, f.Sync(), f.Close())
}
