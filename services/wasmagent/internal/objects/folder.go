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

// tempPrefix is the file name prefix of files that are being written. A file that a crash leaves behind is listed and
// deleted like an object.
const tempPrefix = ".writing-"

// folder is a bucket in a folder of the file system. The first part of a key names a subfolder, and the second part a
// file.
type folder struct{ root *os.Root }

// OpenFolder returns a bucket in a folder. If create is set, it creates a missing folder, which only the current user
// can read.
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
	for range 10 { // retry, because another call may delete the subfolder with its last object
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
		_ = f.root.Remove(part) // if this fails, the file is deleted together with the subfolder's objects
		return err
	}
	// The bucket's folder is synced, too, because the subfolder may be new. Even an existing subfolder may not be synced
	// yet, if the process that created it crashed.
	return errors.Join(f.sync(dir), f.sync("."))
}

// create writes a new file and syncs it to disk.
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

// sync syncs the entries of a folder to disk.
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

// Delete implements [Bucket]. It also removes the subfolder if the object was the last object in it.
func (f folder) Delete(_ context.Context, key string) error {
	if err := f.root.Remove(filepath.FromSlash(key)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	dir, _, _ := strings.Cut(key, "/")
	_ = f.root.Remove(dir) // fails if the subfolder has other objects
	return nil
}
