// Package guests has the guests that are shipped. `make build` builds them into this
// program; they are all that runs.
package guests

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
)

//go:embed dist
var dist embed.FS

// Errors of [Get], for [errors.Is].
var (
	// ErrUnknown: no guest has that name.
	ErrUnknown = errors.New("is no guest")
	// ErrNotBuilt: this program was built without it.
	ErrNotBuilt = errors.New("was not built into this program: run make build")
)

// names are the guests that are shipped.
var names = []string{"echo", "script"}

// Names returns the guests that are shipped, by name.
func Names() []string { return slices.Clone(names) }

// Get returns a guest's module and its digest: SHA-256 as hex, 64 characters.
func Get(name string) (module []byte, digest string, err error) {
	if !slices.Contains(names, name) {
		return nil, "", fmt.Errorf("%q %w; there are %v", name, ErrUnknown, names)
	}
	if module, err = dist.ReadFile("dist/" + name + ".wasm"); err != nil {
		return nil, "", fmt.Errorf("the guest %q %w", name, ErrNotBuilt)
	}
	sum := sha256.Sum256(module)
	return module, hex.EncodeToString(sum[:]), nil
}
