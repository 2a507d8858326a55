// Package files implements an agent's virtual file system. The files are text files in memory that are addressed by
// path. Their size and number are limited. Package agent uses the package.
package files

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"iter"
	"maps"
	"path"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// MaxPath limits the length of a path, in bytes.
const MaxPath = 1024

// The methods of [Files] return these errors. Compare them with [errors.Is].
var (
	// ErrPath means that a path is not valid.
	ErrPath = errors.New("is not a valid path: use a relative path with /, without .. and control characters")
	// ErrNotFound means that the file does not exist.
	ErrNotFound = errors.New("there is no such file")
	// ErrTextNotFound means that the file does not contain the string to replace. ErrAmbiguous means that the file
	// contains it more than once.
	ErrTextNotFound = errors.New("the text to replace is not in the file")
	ErrAmbiguous    = errors.New("the text to replace is in the file more than once: give a longer text, or set replace_all")
	// ErrLineRange means that an offset or limit is negative.
	ErrLineRange = errors.New("offset and limit must be at least 0")
	// ErrFull means that a write would exceed the limits on the agent's files.
	ErrFull = errors.New("the maximum is reached")
)

// Bounds limits the files of an agent. The zero value allows no files.
type Bounds struct {
	// Bytes limits the total size of all contents and paths, in bytes. Count limits the number of files.
	Bytes, Count int
}

// File describes a file without its content. Size is in bytes. SHA256 has 64 hexadecimal digits.
type File struct {
	Path   string
	Size   int
	SHA256 string
	// Modified is when the file was last written.
	Modified time.Time
}

// Files is the set of an agent's files. [New] creates it. It is not safe for concurrent use.
type Files struct {
	bounds Bounds
	all    map[string]entry
	bytes  int
}

// An entry is a stored file. It is immutable.
type entry struct {
	content  string
	sum      [sha256.Size]byte
	modified time.Time
}

// New returns an empty set of files.
func New(b Bounds) *Files { return &Files{bounds: b, all: make(map[string]entry)} }

// Clone returns an independent copy of the files.
func (f *Files) Clone() *Files {
	return &Files{bounds: f.bounds, all: maps.Clone(f.all), bytes: f.bytes}
}

// Path returns the canonical form of a path. For example, the canonical form of `./a//b` is `a/b`. Path returns an
// error that wraps [ErrPath] if the path is invalid.
func Path(text string) (string, error) {
	switch {
	case text == "", len(text) > MaxPath, path.IsAbs(text), !utf8.ValidString(text), strings.ContainsRune(text, '\\'),
		slices.Contains(strings.Split(text, "/"), ".."), strings.ContainsFunc(text, unicode.IsControl):
		return "", fmt.Errorf("%.64q %w", text, ErrPath)
	}
	clean := path.Clean(text)
	if clean == "." || strings.HasSuffix(text, "/") {
		return "", fmt.Errorf("%.64q %w", text, ErrPath)
	}
	return clean, nil
}

// Read returns lines of a file, beginning at the line with the number offset, counted from 0. If limit is 0, it returns
// all remaining lines, and otherwise at most limit lines. It returns [ErrPath], [ErrNotFound] or [ErrLineRange].
func (f *Files) Read(name string, offset, limit int) (string, error) {
	name, e, err := f.find(name)
	if err != nil {
		return "", err
	}
	if offset < 0 || limit < 0 {
		return "", fmt.Errorf("%s: lines from %d, %d of them: %w", name, offset, limit, ErrLineRange)
	}
	if offset == 0 && limit == 0 {
		return e.content, nil
	}
	lines := strings.SplitAfter(e.content, "\n")
	lines = lines[min(offset, len(lines)):]
	if limit > 0 {
		lines = lines[:min(limit, len(lines))]
	}
	return strings.Join(lines, ""), nil
}

func (f *Files) find(name string) (string, entry, error) {
	name, err := Path(name)
	if err != nil {
		return "", entry{}, err
	}
	e, ok := f.all[name]
	if !ok {
		return "", entry{}, fmt.Errorf("%s: %w", name, ErrNotFound)
	}
	return name, e, nil
}

// Write writes a file at the given time and returns its canonical path. It returns [ErrPath] or [ErrFull].
func (f *Files) Write(name, content string, now time.Time) (string, error) {
	name, err := Path(name)
	if err != nil {
		return "", err
	}
	return name, f.store(name, content, now)
}

// store stores a file if the limits allow it, and otherwise returns [ErrFull].
func (f *Files) store(name, content string, now time.Time) error {
	old, exists := f.all[name]
	bytes := f.bytes + len(content) - len(old.content)
	if !exists {
		bytes += len(name)
		if len(f.all) >= f.bounds.Count {
			return fmt.Errorf("%s: %w: an agent has at most %d files", name, ErrFull, f.bounds.Count)
		}
	}
	if bytes > f.bounds.Bytes {
		return fmt.Errorf("%s: %w: all files together have at most %d bytes", name, ErrFull, f.bounds.Bytes)
	}
	f.all[name], f.bytes = entry{content, sha256.Sum256([]byte(content)), now}, bytes
	return nil
}

// Edit replaces a text in a file with another text. If all is true, Edit replaces every occurrence of the old text.
// Otherwise, the file must contain the old text exactly once. Edit returns the canonical path and the number of
// replacements. It returns [ErrPath], [ErrNotFound], [ErrTextNotFound], [ErrAmbiguous] or [ErrFull].
func (f *Files) Edit(name, oldText, newText string, all bool, now time.Time) (string, int, error) {
	name, e, err := f.find(name)
	if err != nil {
		return "", 0, err
	}
	n := 0
	if oldText != "" {
		n = strings.Count(e.content, oldText)
	}
	switch {
	case n == 0:
		return "", 0, fmt.Errorf("%s: %w", name, ErrTextNotFound)
	case n > 1 && !all:
		return "", 0, fmt.Errorf("%s: %w", name, ErrAmbiguous)
	// The size is checked before the new content is created, because a short edit may produce very long content.
	case len(e.content)+n*(len(newText)-len(oldText)) > f.bounds.Bytes:
		return "", 0, fmt.Errorf("%s: %w: all files together have at most %d bytes", name, ErrFull, f.bounds.Bytes)
	}
	return name, n, f.store(name, strings.ReplaceAll(e.content, oldText, newText), now)
}

// List returns the files in the directory with the given path, sorted by path. If the path is empty, it returns all
// files. It returns [ErrPath] if the path is invalid.
func (f *Files) List(below string) ([]File, error) {
	below, err := folderPrefix(below)
	if err != nil {
		return nil, err
	}
	var out []File
	for _, name := range slices.Sorted(maps.Keys(f.all)) {
		if !strings.HasPrefix(name, below) {
			continue
		}
		e := f.all[name]
		out = append(out, File{Path: name, Size: len(e.content), SHA256: hex.EncodeToString(e.sum[:]), Modified: e.modified})
	}
	return out, nil
}

// Paths returns the paths of the files that [Files.List] returns. The result is never nil.
func (f *Files) Paths(below string) ([]string, error) {
	below, err := folderPrefix(below)
	paths := []string{}
	for _, name := range slices.Sorted(maps.Keys(f.all)) {
		if strings.HasPrefix(name, below) {
			paths = append(paths, name)
		}
	}
	return paths, err
}

// folderPrefix returns the prefix that the paths of all files in a directory have in common. For the names "" and ".",
// the prefix is empty.
func folderPrefix(name string) (string, error) {
	if name == "" || name == "." {
		return "", nil
	}
	clean, err := Path(strings.TrimSuffix(name, "/"))
	return clean + "/", err
}

// Content is a file together with its content.
type Content struct {
	Path, Content string
	Modified      time.Time
}

// All returns the files with their contents, sorted by path.
func (f *Files) All() iter.Seq[Content] {
	return func(yield func(Content) bool) {
		for _, name := range slices.Sorted(maps.Keys(f.all)) {
			if e := f.all[name]; !yield(Content{name, e.content, e.modified}) {
				return
			}
		}
	}
}

// Restore adds a file that was stored before, even if the file exceeds the limits.
func (f *Files) Restore(name, content string, modified time.Time) {
	if old, exists := f.all[name]; exists {
		f.bytes -= len(name) + len(old.content)
	}
	f.all[name] = entry{content, sha256.Sum256([]byte(content)), modified}
	f.bytes += len(name) + len(content)
}

// Count returns the number of files.
func (f *Files) Count() int { return len(f.all) }

// Bytes returns the total size of all contents and paths, in bytes.
func (f *Files) Bytes() int { return f.bytes }
