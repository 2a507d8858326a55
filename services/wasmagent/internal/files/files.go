// Package files keeps the files of one agent: texts in memory, by their paths, within
// bounds. They are no files of the machine.
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

// MaxPath is how long a path may be, in bytes.
const MaxPath = 1024

// Errors, for [errors.Is].
var (
	// ErrPath: it is no path of a file here.
	ErrPath = errors.New("is no path: write one that is relative, parted by /, without .. and control characters")
	// ErrUnknown: there is no such file.
	ErrUnknown = errors.New("there is no such file")
	// ErrTarget: what is to be replaced is not there, and ErrAmbiguous: it is there more
	// than once.
	ErrTarget    = errors.New("the text to replace is not in the file")
	ErrAmbiguous = errors.New("the text to replace is in the file more than once: give more of it, or replace_all")
	// ErrLines: there are no such lines.
	ErrLines = errors.New("offset and limit are 0 or more")
	// ErrFull: there is no room.
	ErrFull = errors.New("there is no room for that")
)

// Bounds are what the files may have. The zero value has no room.
type Bounds struct {
	// Bytes is how much all have together, paths included, and Count how many there are.
	Bytes, Count int
}

// File is a file without its content.
type File struct {
	Path   string
	Size   int
	SHA256 string
	// Modified is when it was written last.
	Modified time.Time
}

// Files are those of an agent. Make them with [New]. They are not safe for concurrent use.
type Files struct {
	bounds Bounds
	all    map[string]entry
	bytes  int
}

// An entry is a file; it does not change.
type entry struct {
	content  string
	sum      [sha256.Size]byte
	modified time.Time
}

// New returns no files yet.
func New(b Bounds) *Files { return &Files{bounds: b, all: make(map[string]entry)} }

// Clone returns the same files, which change apart from these.
func (f *Files) Clone() *Files {
	return &Files{bounds: f.bounds, all: maps.Clone(f.all), bytes: f.bytes}
}

// Path is a path in the one form in which it names a file: `./a//b` is `a/b`.
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

// Read returns lines of a file, from offset; limit 0 is all that are left.
func (f *Files) Read(name string, offset, limit int) (string, error) {
	name, e, err := f.find(name)
	if err != nil {
		return "", err
	}
	if offset < 0 || limit < 0 {
		return "", fmt.Errorf("%s: lines from %d, %d of them: %w", name, offset, limit, ErrLines)
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
		return "", entry{}, fmt.Errorf("%s: %w", name, ErrUnknown)
	}
	return name, e, nil
}

// Write writes a file, and returns its path as it is listed. now is the time.
func (f *Files) Write(name, content string, now time.Time) (string, error) {
	name, err := Path(name)
	if err != nil {
		return "", err
	}
	return name, f.put(name, content, now)
}

// put keeps a file, if there is room.
func (f *Files) put(name, content string, now time.Time) error {
	old, there := f.all[name]
	bytes := f.bytes + len(content) - len(old.content)
	if !there {
		bytes += len(name)
		if len(f.all) >= f.bounds.Count {
			return fmt.Errorf("%s: %w: there may be %d files", name, ErrFull, f.bounds.Count)
		}
	}
	if bytes > f.bounds.Bytes {
		return fmt.Errorf("%s: %w: all files may have %d bytes", name, ErrFull, f.bounds.Bytes)
	}
	f.all[name], f.bytes = entry{content, sha256.Sum256([]byte(content)), now}, bytes
	return nil
}

// Edit puts a text in place of another, which has to be there once, or anywhere for all.
// It returns the file's path and how often that was.
func (f *Files) Edit(name, from, to string, all bool, now time.Time) (string, int, error) {
	name, e, err := f.find(name)
	if err != nil {
		return "", 0, err
	}
	n := 0
	if from != "" {
		n = strings.Count(e.content, from)
	}
	switch {
	case n == 0:
		return "", 0, fmt.Errorf("%s: %w", name, ErrTarget)
	case n > 1 && !all:
		return "", 0, fmt.Errorf("%s: %w", name, ErrAmbiguous)
	// What it would become is known before it is made: few bytes may stand for many.
	case len(e.content)+n*(len(to)-len(from)) > f.bounds.Bytes:
		return "", 0, fmt.Errorf("%s: %w: all files may have %d bytes", name, ErrFull, f.bounds.Bytes)
	}
	return name, n, f.put(name, strings.ReplaceAll(e.content, from, to), now)
}

// List returns the files by path: those below a folder, or all where it is empty.
func (f *Files) List(below string) ([]File, error) {
	below, err := folder(below)
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

// Paths are the paths of the files that [Files.List] lists; never nil.
func (f *Files) Paths(below string) ([]string, error) {
	below, err := folder(below)
	paths := []string{}
	for _, name := range slices.Sorted(maps.Keys(f.all)) {
		if strings.HasPrefix(name, below) {
			paths = append(paths, name)
		}
	}
	return paths, err
}

// folder is what the paths of files below a folder begin with; nothing where it is empty.
func folder(name string) (string, error) {
	if name == "" || name == "." {
		return "", nil
	}
	clean, err := Path(strings.TrimSuffix(name, "/"))
	return clean + "/", err
}

// A Content is a file with what is in it.
type Content struct {
	Path, Content string
	Modified      time.Time
}

// All are the files by path.
func (f *Files) All() iter.Seq[Content] {
	return func(yield func(Content) bool) {
		for _, name := range slices.Sorted(maps.Keys(f.all)) {
			if e := f.all[name]; !yield(Content{name, e.content, e.modified}) {
				return
			}
		}
	}
}

// Restore puts a file back that was kept, whatever room there is.
func (f *Files) Restore(name, content string, modified time.Time) {
	if old, there := f.all[name]; there {
		f.bytes -= len(name) + len(old.content)
	}
	f.all[name] = entry{content, sha256.Sum256([]byte(content)), modified}
	f.bytes += len(name) + len(content)
}

// Count is how many there are.
func (f *Files) Count() int { return len(f.all) }

// Bytes is how much they have together, paths included.
func (f *Files) Bytes() int { return f.bytes }
