// Package modules provides the modules of guests. These are the shipped modules, which `make build` embeds into the
// program, and the modules that the configuration lists. Agents can run no other modules. The wasmagent service uses
// the package.
package modules

import (
	"archive/tar"
	"cmp"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/klauspost/compress/zstd"
)

//go:embed dist
var dist embed.FS

// [Guests.Load] returns these errors. Compare them with [errors.Is].
var (
	// ErrUnknown means that there is no shipped or listed guest with the given name.
	ErrUnknown = errors.New("is not a guest")
	// ErrNotBuilt means that the program was built without the shipped guest.
	ErrNotBuilt = errors.New("was not built into this program: run make build, or install a release")
	// ErrMismatch means that the module's file can't be read, or that its digest is not the one in the configuration.
	ErrMismatch = errors.New("is not what the configuration lists")
)

// maxModule limits the size of a listed module, in bytes. Larger modules can't be compiled.
const maxModule = 16 << 20

var shippedNames = []string{"agent", "echo", "script"}

// Listed describes a guest that the configuration lists.
type Listed struct {
	// Path is the path of the module's file. SHA256 is the file's digest, as 64 hexadecimal digits.
	Path, SHA256 string
}

// shipped maps the names of the shipped guests to the digests of their modules. It omits guests that were not built.
var shipped = sync.OnceValue(func() map[string]string {
	digests := make(map[string]string)
	_ = eachShipped(func(name string, module io.Reader) error { // if there is no archive, no guest was built
		h := sha256.New()
		if _, err := io.Copy(h, module); err != nil {
			return err
		}
		digests[name] = hex.EncodeToString(h.Sum(nil))
		return nil
	})
	return digests
})

// errFound is the error with which the callback of eachShipped ends the iteration early.
var errFound = errors.New("the guest was found")

// readShipped returns the module of a shipped guest.
func readShipped(name string) (module []byte, err error) {
	err = eachShipped(func(found string, text io.Reader) (err error) {
		if found != name {
			return nil
		}
		if module, err = io.ReadAll(text); err == nil {
			err = errFound
		}
		return err
	})
	switch {
	case errors.Is(err, errFound):
		return module, nil
	case err == nil:
		err = fs.ErrNotExist
	}
	return nil, err
}

// eachShipped calls yield for each shipped guest, ordered by name. It returns the first error from yield, or an error
// if the archive does not exist or is damaged.
func eachShipped(yield func(name string, module io.Reader) error) error {
	file, err := dist.Open("dist/guests.tar.zst")
	if err != nil {
		return err
	}
	defer file.Close() //nolint:errcheck // the file was only read
	unpacked, err := zstd.NewReader(file, zstd.WithDecoderConcurrency(1))
	if err != nil {
		return err
	}
	defer unpacked.Close()
	for archive := tar.NewReader(unpacked); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = yield(strings.TrimSuffix(header.Name, ".wasm"), archive)
		}
		if err != nil {
			return err
		}
	}
}

// Guests is the set of guests that agents may run. The zero value contains only the shipped guests.
type Guests struct{ listed map[string]Listed }

// New returns the set of the shipped and the listed guests. It returns an error if the file of a listed guest is
// missing or has a different digest, or if a listed guest has the name of a shipped guest.
func New(listed map[string]Listed) (*Guests, error) {
	g := &Guests{listed: maps.Clone(listed)}
	for _, name := range slices.Sorted(maps.Keys(listed)) {
		if slices.Contains(shippedNames, name) {
			return nil, fmt.Errorf("agents.guests.%s: a shipped guest has this name: use another name", name)
		}
		if _, _, err := g.Load(name); err != nil {
			return nil, fmt.Errorf("agents.guests.%s: %w", name, err)
		}
	}
	return g, nil
}

// Names returns the names of the guests, sorted.
func (g *Guests) Names() []string {
	return slices.Sorted(slices.Values(append(slices.Collect(maps.Keys(g.listed)), shippedNames...)))
}

// Digest returns the digest of a guest's current module, or "" if there is no such guest.
func (g *Guests) Digest(name string) string { return cmp.Or(g.listed[name].SHA256, shipped()[name]) }

// ByDigest returns the name of the guest whose current module has the given digest.
func (g *Guests) ByDigest(digest string) (name string, ok bool) {
	for _, name := range g.Names() {
		if digest != "" && g.Digest(name) == digest {
			return name, true
		}
	}
	return "", false
}

// IsShipped reports whether a guest is shipped.
func (g *Guests) IsShipped(name string) bool { return slices.Contains(shippedNames, name) }

// Load returns the current module of a guest and the module's digest, which is the SHA-256 as 64 hexadecimal digits.
// For a listed guest, Load reads the file on each call, and returns an error if the digest of the file is not the one
// in the configuration. Load returns [ErrUnknown], [ErrNotBuilt] or [ErrMismatch].
func (g *Guests) Load(name string) (module []byte, digest string, err error) {
	if listed, ok := g.listed[name]; ok {
		if module, digest, err = listed.load(); err != nil {
			err = fmt.Errorf("the module of the guest %q %w: %w", name, ErrMismatch, err)
		}
		return module, digest, err
	}
	if !slices.Contains(shippedNames, name) {
		return nil, "", fmt.Errorf("%q %w; there are %v", name, ErrUnknown, g.Names())
	}
	if module, err = readShipped(name); err != nil {
		return nil, "", fmt.Errorf("the guest %q %w", name, ErrNotBuilt)
	}
	return module, digestOf(module), nil
}

func (l Listed) load() ([]byte, string, error) {
	file, err := os.Open(l.Path)
	if err != nil {
		return nil, "", err
	}
	defer file.Close() //nolint:errcheck // the file was only read
	module, err := io.ReadAll(io.LimitReader(file, maxModule+1))
	switch {
	case err != nil:
		return nil, "", err
	case len(module) > maxModule:
		return nil, "", fmt.Errorf("%s has more than %d MiB", l.Path, maxModule>>20)
	}
	if digest := digestOf(module); digest != l.SHA256 {
		return nil, "", fmt.Errorf("the SHA-256 of %s is %s, but the configuration has %s", l.Path, digest, l.SHA256)
	}
	return module, l.SHA256, nil
}

func digestOf(module []byte) string {
	sum := sha256.Sum256(module)
	return hex.EncodeToString(sum[:])
}
