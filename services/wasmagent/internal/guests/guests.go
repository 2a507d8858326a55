// Package guests has the modules that agents run: those that are shipped, which `make build`
// builds into this program, and those that the configuration lists. Nothing else runs.
package guests

import (
	"cmp"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"sync"
)

//go:embed dist
var dist embed.FS

// Errors of [Guests.Get], for [errors.Is].
var (
	// ErrUnknown: no guest has that name.
	ErrUnknown = errors.New("is no guest")
	// ErrNotBuilt: this program was built without it.
	ErrNotBuilt = errors.New("was not built into this program: run make build")
	// ErrListed: the file is not what the configuration lists.
	ErrListed = errors.New("is not what the configuration lists")
)

// maxModule is how large a module's file may be that is listed, in bytes: larger ones are not
// compiled.
const maxModule = 16 << 20

// names are the guests that are shipped.
var names = []string{"agent", "echo", "script"}

// Listed is a guest of the configuration.
type Listed struct {
	// Path is its module's file, and SHA256 the hash of that: hex, 64 characters.
	Path, SHA256 string
}

// shipped are the digests of the guests that are shipped, by name; empty for one that was not
// built.
var shipped = sync.OnceValue(func() map[string]string {
	digests := make(map[string]string)
	for _, name := range names {
		if module, err := dist.ReadFile("dist/" + name + ".wasm"); err == nil {
			digests[name] = digestOf(module)
		}
	}
	return digests
})

// Guests are those that may run. The zero value has those that are shipped.
type Guests struct{ listed map[string]Listed }

// New returns the shipped guests, and those that are listed; each has to be there. A name of
// a shipped guest's is an error.
func New(listed map[string]Listed) (*Guests, error) {
	g := &Guests{listed: maps.Clone(listed)}
	for _, name := range slices.Sorted(maps.Keys(listed)) {
		if slices.Contains(names, name) {
			return nil, fmt.Errorf("agents.guests.%s: a guest of that name is shipped", name)
		}
		if _, _, err := g.Get(name); err != nil {
			return nil, fmt.Errorf("agents.guests.%s: %w", name, err)
		}
	}
	return g, nil
}

// Names returns the guests by name.
func (g *Guests) Names() []string {
	return slices.Sorted(slices.Values(append(slices.Collect(maps.Keys(g.listed)), names...)))
}

// Digest is the digest of a guest; empty where there is none of that name.
func (g *Guests) Digest(name string) string { return cmp.Or(g.listed[name].SHA256, shipped()[name]) }

// ByDigest finds a guest by the digest of its module.
func (g *Guests) ByDigest(digest string) (name string, ok bool) {
	for _, name := range g.Names() {
		if digest != "" && g.Digest(name) == digest {
			return name, true
		}
	}
	return "", false
}

// IsShipped reports whether a guest is shipped.
func (g *Guests) IsShipped(name string) bool { return slices.Contains(names, name) }

// Get returns a guest's module and its digest: SHA-256 as hex, 64 characters. The file of one
// that is listed is read again, and counts as long as it is what was listed.
func (g *Guests) Get(name string) (module []byte, digest string, err error) {
	if at, ok := g.listed[name]; ok {
		if module, digest, err = at.read(); err != nil {
			err = fmt.Errorf("the module of the guest %q %w: %w", name, ErrListed, err)
		}
		return module, digest, err
	}
	if !slices.Contains(names, name) {
		return nil, "", fmt.Errorf("%q %w; there are %v", name, ErrUnknown, g.Names())
	}
	if module, err = dist.ReadFile("dist/" + name + ".wasm"); err != nil {
		return nil, "", fmt.Errorf("the guest %q %w", name, ErrNotBuilt)
	}
	return module, digestOf(module), nil
}

func (l Listed) read() ([]byte, string, error) {
	file, err := os.Open(l.Path)
	if err != nil {
		return nil, "", err
	}
	defer file.Close() //nolint:errcheck // it was only read
	module, err := io.ReadAll(io.LimitReader(file, maxModule+1))
	switch {
	case err != nil:
		return nil, "", err
	case len(module) > maxModule:
		return nil, "", fmt.Errorf("%s has more than %d MiB", l.Path, maxModule>>20)
	}
	if digest := digestOf(module); digest != l.SHA256 {
		return nil, "", fmt.Errorf("the SHA-256 of %s is %s, and %s is listed", l.Path, digest, l.SHA256)
	}
	return module, l.SHA256, nil
}

func digestOf(module []byte) string {
	sum := sha256.Sum256(module)
	return hex.EncodeToString(sum[:])
}
