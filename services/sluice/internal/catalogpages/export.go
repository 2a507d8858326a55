package catalogpages

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"maps"
	"os"
	"path"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
)

// markerFile is a file that identifies a directory that this package has written. Its first line contains the format.
// Each other line is the name of an exported file.
const markerFile = ".sluice-catalogue"

// markerPrefix is the beginning of the marker's first line, before the name of the format.
const markerPrefix = "written by sluice catalog export as "

// temporaryPattern is the name of a page's temporary file. The * is replaced with the process id and a number.
const temporaryPattern = ".sluice-page-*.tmp"

var (
	// ErrFolder means that a directory contains files that this package did not write.
	ErrFolder = errors.New("the folder contains other files: choose a folder that is empty or does not exist")
	// ErrFormat means that a directory contains an export in another format.
	ErrFormat = errors.New("the folder contains the catalog in another format: choose another folder")
)

type page struct {
	// name is the path in the directory, with slashes.
	name string
	fill func(io.Writer) error
}

// export writes pages into a directory, which it creates if necessary. It replaces the pages of an earlier export,
// removes pages that no longer exist, and changes no other file. An interrupted export leaves only complete pages,
// which the next export replaces. export iterates over pages twice. It calls the function fill of several pages
// concurrently. It calls the last page's fill after all others.
func export(dir, format string, pages iter.Seq[page]) (err error) {
	f, err := openFolder(dir, format)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.root.Close()) }()
	now := make(map[string]bool)
	for p := range pages {
		now[p.name] = true
	}
	if err := f.addToMarker(now); err != nil {
		return err
	}
	if err := f.writeAll(pages); err != nil {
		return err
	}
	return f.removeStale(now)
}

// folder is the directory into which an export is written.
type folder struct {
	root   *os.Root
	format string
	// earlier contains the file names in the marker file. An earlier export wrote these files, or was interrupted before
	// it could write them.
	earlier map[string]bool
	// temporaryCount counts the temporary files, so that each gets a different name.
	temporaryCount atomic.Int64
}

// openFolder opens or creates a directory. Other users may read the directory, because its pages are not secret.
func openFolder(dir, format string) (*folder, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("create the folder: %w", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("open the folder: %w", err)
	}
	f := &folder{root: root, format: format}
	if f.earlier, err = f.readMarker(); err == nil {
		err = f.removeUnfinished()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", dir, err), root.Close())
	}
	return f, nil
}

// readMarker returns the file names in the marker file, or nil if the directory is empty. The error can be [ErrFolder]
// or [ErrFormat].
func (f *folder) readMarker() (map[string]bool, error) {
	text, err := f.root.ReadFile(markerFile)
	if errors.Is(err, fs.ErrNotExist) {
		entries, err := fs.ReadDir(f.root.FS(), ".")
		if err == nil && len(entries) > 0 {
			err = ErrFolder
		}
		return nil, err
	}
	if err != nil {
		return nil, err
	}
	head, files, _ := strings.Cut(string(text), "\n")
	format, ours := strings.CutPrefix(head, markerPrefix)
	switch {
	case !ours:
		return nil, ErrFolder
	case format != f.format:
		return nil, fmt.Errorf("%w (it is %q)", ErrFormat, format)
	}
	before := make(map[string]bool)
	for name := range strings.Lines(files) {
		before[strings.TrimSuffix(name, "\n")] = true
	}
	return before, nil
}

func (f *folder) removeUnfinished() error {
	left, err := fs.Glob(f.root.FS(), temporaryPattern)
	for _, name := range left {
		err = errors.Join(err, f.root.Remove(name))
	}
	return err
}

// addToMarker adds file names to the marker file. export calls it before it writes these files. If the directory
// already contains one of the files, and the marker file does not list it, addToMarker changes nothing and returns
// [ErrFolder].
func (f *folder) addToMarker(now map[string]bool) error {
	for name := range now {
		if f.earlier[name] {
			continue
		}
		if _, err := f.root.Lstat(name); err == nil {
			return fmt.Errorf("%s: %w", name, ErrFolder)
		}
	}
	both := maps.Clone(now)
	maps.Copy(both, f.earlier)
	return f.writeMarker(both)
}

func (f *folder) writeMarker(files map[string]bool) error {
	return f.writeFile(markerFile, func(w io.Writer) error {
		fmt.Fprintln(w, markerPrefix+f.format)
		for _, name := range slices.Sorted(maps.Keys(files)) {
			fmt.Fprintln(w, name)
		}
		return nil
	})
}

// writeAll writes pages, at most GOMAXPROCS of them concurrently. It writes the last page after all others. It stops at
// the first error.
func (f *folder) writeAll(pages iter.Seq[page]) error {
	group, going := errgroup.WithContext(context.Background())
	group.SetLimit(runtime.GOMAXPROCS(0))
	var last *page
	for p := range pages {
		if before := last; before != nil {
			group.Go(func() error { return f.writePage(*before) })
		}
		if last = &p; going.Err() != nil {
			break
		}
	}
	if err := group.Wait(); err != nil || last == nil {
		return err
	}
	return f.writePage(*last)
}

func (f *folder) writePage(p page) error {
	err := f.root.MkdirAll(path.Dir(p.name), 0o755)
	if err == nil {
		err = f.writeFile(p.name, p.fill)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", p.name, err)
	}
	return nil
}

// writeFile writes a file completely or not at all, by renaming a temporary file.
func (f *folder) writeFile(name string, fill func(io.Writer) error) error {
	temporary := strings.Replace(temporaryPattern, "*", fmt.Sprintf("%d-%d", os.Getpid(), f.temporaryCount.Add(1)), 1)
	file, err := f.root.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	w := bufio.NewWriterSize(file, 1<<16) // Flush returns the first error of a write
	if err = errors.Join(fill(w), w.Flush(), file.Close()); err == nil {
		err = f.root.Rename(temporary, name)
	}
	if err != nil {
		return errors.Join(err, f.root.Remove(temporary))
	}
	return nil
}

// removeStale removes the files from earlier exports that this export did not write, and directories that become empty.
func (f *folder) removeStale(now map[string]bool) error {
	for name := range f.earlier {
		if now[name] {
			continue
		}
		if err := f.root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove %s, whose tool or server no longer exists: %w", name, err)
		}
		for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
			if f.root.Remove(dir) != nil {
				break // the directory is not empty
			}
		}
	}
	return f.writeMarker(now)
}
