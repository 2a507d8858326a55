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

// tempPrefix is the prefix of the names of incomplete files. If a crash leaves such a file, it is listed and deleted
// like an object.
const tempPrefix = ".writing-"

// folder is a bucket in a directory of the file system. The first part of a key is the name of a subdirectory, and the
// second part is the name of a file in that subdirectory.
type folder struct{ root *os.Root }

// OpenFolder returns the bucket in a directory. If create is true and the directory does not exist, OpenFolder creates
// it so that only the current user can read it.
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
	if !ok || strings.HasPrefix(name, tempPrefix) {
		return fmt.Errorf("object %q: its key is not of the form FIRST/SECOND", key)
	}
	for range 10 { // try again, because another call may remove the subdirectory together with its last object
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
	part := filepath.Join(dir, tempPrefix+rand.Text())
	err = f.create(part, data)
	if err == nil {
		err = f.root.Rename(part, filepath.Join(dir, name))
	}
	if err != nil {
		_ = f.root.Remove(part) // if this fails, the file is deleted together with the objects
		return err
	}
	// The bucket's directory is synced, too, because the subdirectory may be new. Even if it is not new, the process
	// that created it may have crashed before it synced the bucket's directory.
	return errors.Join(f.sync(dir), f.sync("."))
}

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
			if errors.Is(err, fs.ErrNotExist) { // another process has deleted the file
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

// Delete implements [Bucket]. When it has deleted the last object in a subdirectory, it also removes the subdirectory.
func (f folder) Delete(_ context.Context, key string) error {
	if err := f.root.Remove(filepath.FromSlash(key)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	dir, _, _ := strings.Cut(key, "/")
	_ = f.root.Remove(dir) // fails if the subdirectory has other objects
	return nil
}
