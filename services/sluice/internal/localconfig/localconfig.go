// Package localconfig reads the configuration of the working folder of a command. The file may be untrusted: from a
// cloned repository, or from a folder that several users write to. So the file is read only once, and only if no other
// user can write it. The user's agreement to use it is stored for the folder and the content.
package localconfig

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
)

// Name is the name of the file.
const Name = "sluice.yaml"

// maxBytes bounds the file. A longer one is refused.
const maxBytes = 1 << 20

// UntrustedError means that an existing file is not read.
type UntrustedError struct {
	// Why says what is wrong with the file or its folder. Do says how to correct that; it may be empty.
	Why, Do string
}

func (e *UntrustedError) Error() string {
	text := fmt.Sprintf("%s in this folder is not used, because %s: ", Name, e.Why)
	if e.Do != "" {
		text += e.Do + ", or "
	}
	return text + "name a configuration with --config"
}

// Digest returns the identifier of this content in this folder, a SHA-256 of both, as 64 hexadecimal digits.
func Digest(folder string, content []byte) string {
	h := sha256.New()
	_, _ = fmt.Fprintf(h, "sluice local configuration v1\n%d %s\n", len(folder), folder) // a hash does not fail
	_, _ = h.Write(content)
	return hex.EncodeToString(h.Sum(nil))
}

// Agreed stores the digests that a user of this machine has agreed to. The zero value stores nothing.
type Agreed struct{ dir string }

// OpenAgreed opens the store of the digests that the user has agreed to. It returns an error if the folder for the
// user's configuration is not known.
func OpenAgreed() (Agreed, error) {
	dir, err := os.UserConfigDir()
	if err != nil {
		return Agreed{}, fmt.Errorf("find the folder of your configuration: %w", err)
	}
	return Agreed{filepath.Join(dir, "sluice", "agreed")}, nil
}

// Has reports whether the user agreed to a digest. Only a file that this user alone can have created counts.
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

// Add stores a digest.
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
