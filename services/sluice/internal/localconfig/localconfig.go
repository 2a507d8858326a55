// Package localconfig reads the configuration file in the working directory of a command. The file may be untrusted,
// because it may come from a cloned repository, or because other users can write to the directory. Therefore the file
// is read only once, and only if no other user can write to it. The package also stores the digests of the files that
// the user has agreed to use.
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

// maxBytes is the maximum size of the file in bytes. A larger file is refused.
const maxBytes = 1 << 20

// UntrustedError is the reason why an existing file was not read.
type UntrustedError struct {
	// Why is the problem with the file or its directory. Do says how the user can correct the problem, or is empty.
	Why, Do string
}

func (e *UntrustedError) Error() string {
	text := fmt.Sprintf("%s in this folder is not used, because %s: ", Name, e.Why)
	if e.Do != "" {
		text += e.Do + ", or "
	}
	return text + "name a configuration with --config"
}

// Digest returns the SHA-256 digest of a directory's path and the content of its file, as 64 hexadecimal digits.
func Digest(dir string, content []byte) string {
	h := sha256.New()
	_, _ = fmt.Fprintf(h, "sluice local configuration v1\n%d %s\n", len(dir), dir) // a hash never returns an error
	_, _ = h.Write(content)
	return hex.EncodeToString(h.Sum(nil))
}

// Agreed is the set of digests to which a user of this machine has agreed. It is stored in a directory. The zero value
// is empty and stores nothing.
type Agreed struct{ dir string }

// OpenAgreed returns the digests to which the user has agreed. It fails if [os.UserConfigDir] fails.
func OpenAgreed() (Agreed, error) {
	dir, err := os.UserConfigDir()
	if err != nil {
		return Agreed{}, fmt.Errorf("find the folder for your agreement to configurations: %w", err)
	}
	return Agreed{filepath.Join(dir, "sluice", "agreed")}, nil
}

// Has reports whether the user has agreed to a digest. It returns false if another user could have stored the
// agreement.
func (a Agreed) Has(digest string) bool {
	if a.dir == "" {
		return false
	}
	folder, err := os.Lstat(a.dir)
	if err != nil || !folder.IsDir() || !isOwnerOnly(folder) {
		return false
	}
	file, err := os.Lstat(filepath.Join(a.dir, digest))
	return err == nil && file.Mode().IsRegular() && isOwnerOnly(file)
}

// Add stores a digest to which the user has agreed.
func (a Agreed) Add(digest string) error {
	if a.dir == "" {
		return nil
	}
	if err := os.MkdirAll(a.dir, 0o700); err != nil {
		return fmt.Errorf("store your agreement to the configuration: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(a.dir, digest), os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("store your agreement to the configuration: %w", err)
	}
	return f.Close()
}
