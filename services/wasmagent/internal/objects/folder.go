package objects

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"strings"
)

// temporary begins the names of files that are being written. One that stays after a crash is listed and deleted with the
// objects of its folder.
const temporary = ".writing-"

// folder is a bucket in a folder. Each object is a file, and the first part of its key a folder.
type folder struct{ root *os.Root }

// OpenFolder returns a bucket in a folder, which it creates if create is set. Only this user may read a new folder.
func OpenFolder(path string, create bool) (Bucket, error) {
	if create {
		if err := os.MkdirAll(path, 0o700); err != nil {
			return nil, err
		}
	}
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, err
	}
	return folder{root}, nil
}

// Write implements [Bucket].
func (f folder) Write(_ context.Context, key string, data []byte) (err error) {
	dir, name, ok := strings.Cut(key, "/")
	if !ok || strings.HasPrefix(name, temporary) {
		return fmt.Errorf("object %q: its key is not of the form FIRST/SECOND", key)
	}
	for range 10 { // the folder may be deleted meanwhile with its last object
		if err = f.write(dir, name, data); !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	return err
}

func (f folder) write(dir, name string, data []byte) error {
	err := f.root.Mkdir(dir, 0o700)
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	part := filepath.Join(dir, temporary+rand.Text())
	err = f.create(part, data)
	if err == nil {
		err = f.root.Rename(part, filepath.Join(dir, name))
	}
	if err != nil {
		_ = f.root.Remove(part) // a file that stays is deleted with the folder's objects
		return err
	}
	// The folder may be new, made by a process that died before it was synced.
	return errors.Join(f.sync(dir), f.sync("."))
}

// create writes a file and syncs it.
func (f folder) create(name string, data []byte) error {
	file, err := f.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(data)
	if err == nil {
		err = file.Sync()
	}
	return errors.Join(err, file.Close())
}

// sync writes the names in a folder to disk.
func (f folder) sync(name string) error {
	dir, err := f.root.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// Read implements [Bucket].
func (f folder) Read(_ context.Context, key string) (io.ReadCloser, error) {
	file, err := f.root.Open(filepath.FromSlash(key))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrNotFound
	}
	return file, err
}

// List implements [Bucket].
func (f folder) List(_ context.Context, first string) iter.Seq2[Object, error] {
	return func(yield func(Object, error) bool) {
		entries, err := fs.ReadDir(f.root.FS(), first)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			yield(Object{}, err)
			return
		}
		for _, entry := range entries {
			info, err := entry.Info()
			if errors.Is(err, fs.ErrNotExist) { // another process has deleted it
				continue
			}
			if err != nil {
				yield(Object{}, err)
				return
			}
			if !yield(Object{first + "/" + entry.Name(), info.ModTime()}, nil) {
				return
			}
		}
	}
}

// Close implements [Bucket].
func (f folder) Close() error { return f.root.Close() }

// Delete implements [Bucket]. The folder of the first part goes with its last object.
func (f folder) Delete(_ context.Context, key string) error {
	if err := f.root.Remove(filepath.FromSlash(key)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	dir, _, _ := strings.Cut(key, "/")
	_ = f.root.Remove(dir) // fails if other objects are in it
	return nil
}
