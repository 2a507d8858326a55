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

// marker is the file that identifies a folder of this package. Its first line names the format; each other line is a
// file that an export wrote.
const marker = ".sluice-catalogue"

// greeting is the beginning of the marker, before the format's name.
const greeting = "written by sluice catalog export as "

// unfinished is the name of a page that is not complete yet; * is the process and a number.
const unfinished = ".sluice-page-*.tmp"

// Errors of folders.
var (
	// ErrFolder means that a folder has files that this package did not write.
	ErrFolder = errors.New("the folder holds something else: choose one that is empty, or not there yet")
	// ErrFormat means that a folder has an export in another format.
	ErrFormat = errors.New("the folder holds the catalogue in another format: choose another folder")
)

// page is a file to write, relative to the folder.
type page struct {
	name string
	fill func(io.Writer) error
}

// export writes pages into a folder, which it creates if necessary. It replaces what an earlier export wrote and
// removes pages that no longer exist. It changes no other file. An export that is stopped leaves complete pages, which
// the next export recognizes. It iterates over the pages twice. Pages are created when they are written, several at a
// time, and the last one after all others.
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
	if err := f.announce(now); err != nil {
		return err
	}
	if err := f.writeAll(pages); err != nil {
		return err
	}
	return f.finish(now)
}

type folder struct {
	root   *os.Root
	format string
	// before are the files that an earlier export wrote, or was about to write when it was stopped.
	before map[string]bool
	// begun counts the files that were begun.
	begun atomic.Int64
}

// openFolder opens a folder that others may read, because pages are made to be shown.
func openFolder(dir, format string) (*folder, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("make the folder: %w", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("open the folder: %w", err)
	}
	f := &folder{root: root, format: format}
	if f.before, err = f.readMarker(); err == nil {
		err = f.removeUnfinished()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", dir, err), root.Close())
	}
	return f, nil
}

// readMarker returns the files of an earlier export; none if the folder is empty.
func (f *folder) readMarker() (map[string]bool, error) {
	text, err := f.root.ReadFile(marker)
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
	format, ours := strings.CutPrefix(head, greeting)
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

// removeUnfinished removes the incomplete files of an export that was killed.
func (f *folder) removeUnfinished() error {
	left, err := fs.Glob(f.root.FS(), unfinished)
	for _, name := range left {
		err = errors.Join(err, f.root.Remove(name))
	}
	return err
}

// announce adds the files to the marker before the first of them is written. It fails if another program wrote a file
// of that name, before anything is changed.
func (f *folder) announce(now map[string]bool) error {
	for name := range now {
		if f.before[name] {
			continue
		}
		if _, err := f.root.Lstat(name); err == nil {
			return fmt.Errorf("%s: %w", name, ErrFolder)
		}
	}
	both := maps.Clone(now)
	maps.Copy(both, f.before)
	return f.mark(both)
}

func (f *folder) mark(files map[string]bool) error {
	return f.place(marker, func(w io.Writer) error {
		fmt.Fprintln(w, greeting+f.format)
		for _, name := range slices.Sorted(maps.Keys(files)) {
			fmt.Fprintln(w, name)
		}
		return nil
	})
}

// writeAll writes pages, as many at a time as there are processors, and the last one last. It stops at the first error.
func (f *folder) writeAll(pages iter.Seq[page]) error {
	group, going := errgroup.WithContext(context.Background())
	group.SetLimit(runtime.GOMAXPROCS(0))
	var last *page
	for p := range pages {
		if before := last; before != nil {
			group.Go(func() error { return f.write(*before) })
		}
		if last = &p; going.Err() != nil {
			break
		}
	}
	if err := group.Wait(); err != nil || last == nil {
		return err
	}
	return f.write(*last)
}

func (f *folder) write(p page) error {
	err := f.root.MkdirAll(path.Dir(p.name), 0o755)
	if err == nil {
		err = f.place(p.name, p.fill)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", p.name, err)
	}
	return nil
}

// place writes a file completely or not at all: first under another name.
func (f *folder) place(name string, fill func(io.Writer) error) error {
	temporary := strings.Replace(unfinished, "*", fmt.Sprintf("%d-%d", os.Getpid(), f.begun.Add(1)), 1)
	file, err := f.root.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	w := bufio.NewWriterSize(file, 1<<16) // it stores the first error until Flush
	if err = errors.Join(fill(w), w.Flush(), file.Close()); err == nil {
		err = f.root.Rename(temporary, name)
	}
	if err != nil {
		return errors.Join(err, f.root.Remove(temporary))
	}
	return nil
}

// finish removes files of earlier exports that this one did not write, and folders that are empty then.
func (f *folder) finish(now map[string]bool) error {
	for name := range f.before {
		if now[name] {
			continue
		}
		if err := f.root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove %s, which is no page any more: %w", name, err)
		}
		for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
			if f.root.Remove(dir) != nil {
				break // the folder is not empty
			}
		}
	}
	return f.mark(now)
}
