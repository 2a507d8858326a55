package stdio

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

const (
	// homeMark is the suffix of a file next to a private directory. The file contains the names of the links that
	// linkHome created. No process can change the file.
	homeMark = ".home"
	// ownEntry is the suffix with which linkHome renames an entry that the process has created, if a link needs the
	// entry's name.
	ownEntry = ".own"
)

// linkHome creates links in a private directory to entries of HOME, at the same relative paths. It removes links from
// earlier calls that are no longer needed. It never follows an entry to a place outside the directory, because the
// process controls the directory.
func linkHome(dir, home string, entries []string) error {
	before, err := os.ReadFile(dir + homeMark)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if len(before) == 0 && len(entries) == 0 {
		return nil
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }() // root was not used to write files
	for name := range strings.FieldsFuncSeq(string(before), func(r rune) bool { return r == '\n' }) {
		if slices.Contains(entries, name) {
			continue
		}
		if err := removeLink(root, name); err != nil {
			return err
		}
	}
	if len(entries) == 0 {
		return os.Remove(dir + homeMark)
	}
	if err := os.WriteFile(dir+homeMark, []byte(strings.Join(entries, "\n")+"\n"), 0o600); err != nil {
		return err
	}
	for _, name := range entries {
		if err := linkEntry(root, home, name); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// linkEntry creates the link to one entry. It creates no link if the entry does not exist in HOME.
func linkEntry(root *os.Root, home, name string) error {
	target, err := filepath.EvalSymlinks(filepath.Join(home, name))
	if errors.Is(err, fs.ErrNotExist) {
		return removeLink(root, name)
	}
	if err != nil {
		return err
	}
	if err := root.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		return err
	}
	info, err := root.Lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return err
	case info.Mode()&fs.ModeSymlink != 0:
		if err := root.Remove(name); err != nil {
			return err
		}
	default:
		if _, err := root.Lstat(name + ownEntry); err == nil {
			return fmt.Errorf("the private folder %s has %s and %s of its own: remove one of them", root.Name(), name, name+ownEntry)
		}
		if err := root.Rename(name, name+ownEntry); err != nil {
			return err
		}
	}
	return root.Symlink(target, name)
}

// removeLink removes a link. If the name refers to any other kind of file, the file is not removed.
func removeLink(root *os.Root, name string) error {
	info, err := root.Lstat(name)
	if err != nil || info.Mode()&fs.ModeSymlink == 0 {
		return nil //nolint:nilerr // there is no link, or the process has replaced a directory on the path
	}
	return root.Remove(name)
}
