//go:build !unix

package localconfig

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Read returns an [UntrustedError] if the file exists, because on this system the package can't check who may write to
// the file.
func Read(dir string) ([]byte, error) {
	if _, err := os.Lstat(filepath.Join(dir, Name)); errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: %w", Name, err)
	}
	return nil, &UntrustedError{Why: "only on Unix can sluice check who may write to it"}
}

// Usable reports whether [Read] would read the file in a directory.
func Usable(string) bool { return false }

func isOwnerOnly(fs.FileInfo) bool { return false }
