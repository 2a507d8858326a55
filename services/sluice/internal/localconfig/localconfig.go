// Package localconfig reads the configuration of the folder in which a command runs. It may be anybody's: of a
// repository that was cloned, or of a folder that several users write to. So it is read once, only where its caller
// alone can write it, and what a person has agreed to is remembered by folder and content.
package localconfig

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
)

// Name is the file's name.
const Name = "sluice.yaml"

// maxBytes bounds the file; a longer one is refused.
const maxBytes = 1 << 20

// UntrustedError says why the file is there and not read.
type UntrustedError struct {
	// Why is what is wrong with the file or its folder, and Do what makes it right; Do may be empty.
	Why, Do string
}

func (e *UntrustedError) Error() string {
	text := fmt.Sprintf("%s in this folder is not used, because %s: ", Name, e.Why)
	if e.Do != "" {
		text += e.Do + ", or "
	}
	return text + "name a configuration with --config"
}

// Digest identifies this content in this folder: 64 hexadecimal digits.
func Digest(folder string, content []byte) string {
	h := sha256.New()
	_, _ = fmt.Fprintf(h, "sluice local configuration v1\n%d %s\n", len(folder), folder) // a hash takes everything
	_, _ = h.Write(content)
	return hex.EncodeToString(h.Sum(nil))
}

// Agreed remembers which digests a person has agreed to, for one user of this machine. The zero value remembers nothing.
type Agreed struct{ dir string }

// OpenAgreed returns what the user has agreed to. The error says why nothing can be remembered.
func OpenAgreed() (Agreed, error) {
	dir, err := os.UserConfigDir()
	if err != nil {
		return Agreed{}, fmt.Errorf("find the folder of your configuration: %w", err)
	}
	return Agreed{filepath.Join(dir, "sluice", "agreed")}, nil
}

// Has reports whether a digest was agreed to, by a file that this user alone can have made.
func (a Agreed) Has(digest string) bool {
	if a.dir == "" {
		return false
	}
	folder, err := os.Lstat(a.dir)
	if err != nil || !folder.IsDir() || !ownAlone(folder) {
		return false
	}
	file, err := os.Lstat(filepath.Join(a.dir, digest))
	return err == nil && file.Mode().IsRegular() && ownAlone(file)
}

// Add remembers a digest.
func (a Agreed) Add(digest string) error {
	if a.dir == "" {
		return nil
	}
	if err := os.MkdirAll(a.dir, 0o700); err != nil {
		return fmt.Errorf("remember the configuration: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(a.dir, digest), os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("remember the configuration: %w", err)
	}
	return f.Close()
}
