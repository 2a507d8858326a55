// Package atomicfile replaces files that other programs also write. A reader sees either the whole old content or the
// whole new content, even if the process is killed. On Linux, content that another program writes during the
// replacement is not lost. On other systems, it can be lost if the other program writes it immediately before the
// rename.
package atomicfile

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/gofrs/flock"
)

// ErrChanged means that another program changed the file.
var ErrChanged = errors.New("another program has changed the file")

const (
	// lockRetry is the interval between two attempts to lock.
	lockRetry = 50 * time.Millisecond
	// settleEmpty is the minimum value of Settle if the old file is empty. Another program may have just truncated the
	// file before writing to it.
	settleEmpty = 500 * time.Millisecond
)

// A Writer replaces files. Its methods are safe for concurrent use, even by several processes that use the same lock
// file.
type Writer struct {
	// Lock is the path of the lock file. Its directory is created if it does not exist.
	Lock string
	// Settle is how long Replace waits before it reads the new file again. If another program has changed the file in this
	// time, Replace returns [ErrChanged]. Settle should be longer than another program needs to write the file.
	Settle time.Duration
	// Within is a directory. Replace refuses a file if a symbolic link leads outside this directory. For a file in a
	// project, set Within to the project's directory, because the project's author may have added such links. If Within is
	// empty, links may lead anywhere.
	Within string

	// at is called after each step with the name of the step. It is nil except in tests.
	at func(step string)
	// renameOnly makes tests behave as on a system that can't exchange files.
	renameOnly bool
}

func (w *Writer) reached(step string) {
	if w.at != nil {
		w.at(step)
	}
}

// Replace replaces the content of a file. If the file does not have the given old content, Replace returns
// [ErrChanged]. If path is a symbolic link, Replace replaces the target of the link. The new file has the mode of the
// old file. It also has the group of the old file if the process may set the group. Replace refuses a file that has
// several hard links or an access control list, belongs to another user, or is read-only. When ctx is done, Replace
// stops only if it is still waiting for the lock.
func (w *Writer) Replace(ctx context.Context, path string, before, after []byte) error {
	return w.locked(ctx, path, func() error {
		f, err := w.open(path)
		if err != nil {
			return err
		}
		w.reached("checked")
		return w.replace(f, before, after)
	})
}

// Create creates a file that only its owner may read. If the file exists, Create returns [ErrChanged].
func (w *Writer) Create(ctx context.Context, path string, content []byte) error {
	return w.locked(ctx, path, func() error {
		target, err := w.resolveNew(path)
		if err != nil {
			return err
		}
		f := &file{path: target, mode: 0o600, gid: -1}
		if err := f.removeLeftovers(); err != nil {
			return err
		}
		temp, err := f.write(nil, content, w.reached)
		if err != nil {
			return err
		}
		defer os.Remove(temp) //nolint:errcheck // the next call removes a leftover
		if err := os.Link(temp, f.path); errors.Is(err, fs.ErrExist) {
			return ErrChanged
		} else if err != nil {
			return err
		}
		w.reached("linked")
		return syncDir(filepath.Dir(f.path))
	})
}

// Remove removes a file. If the file's content differs from the given content, Remove returns [ErrChanged].
func (w *Writer) Remove(ctx context.Context, path string, content []byte) error {
	return w.locked(ctx, path, func() error {
		f, err := w.open(path)
		if errors.Is(err, fs.ErrNotExist) { // an earlier call may have been killed after it moved the file
			return errors.Join(err, w.removeLeftovers(path))
		}
		if err != nil {
			return err
		}
		w.reached("checked")
		if err := sameContent(f.path, content); err != nil {
			return err
		}
		temp := f.tempName(content, nil)
		if err := os.Rename(f.path, temp); err != nil {
			return err
		}
		w.reached("moved")
		if err := sameContent(temp, content); err != nil {
			if linkErr := os.Link(temp, f.path); linkErr != nil {
				return fmt.Errorf("%w: its content is in %s", err, temp)
			}
			return errors.Join(err, os.Remove(temp))
		}
		if err := os.Remove(temp); err != nil {
			return err
		}
		return syncDir(filepath.Dir(f.path))
	})
}

// RemoveLeftovers removes the temporary files that killed processes left in the directory of a file. The file itself
// need not exist. RemoveLeftovers returns [ErrChanged] if a temporary file may contain another program's content.
func (w *Writer) RemoveLeftovers(ctx context.Context, path string) error {
	return w.locked(ctx, path, func() error {
		target, err := w.resolve(path)
		if errors.Is(err, fs.ErrNotExist) {
			target, err = w.resolveNew(path)
		}
		if err != nil {
			return err
		}
		return (&file{path: target}).removeLeftovers()
	})
}

// locked calls f while this process holds the lock.
func (w *Writer) locked(ctx context.Context, path string, f func() error) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s: %w", path, err)
		}
	}()
	if err := os.MkdirAll(filepath.Dir(w.Lock), 0o700); err != nil {
		return fmt.Errorf("make the directory of the lock: %w", err)
	}
	lock := flock.New(w.Lock, flock.SetPermissions(0o600))
	if _, err := lock.TryLockContext(ctx, lockRetry); err != nil {
		return fmt.Errorf("wait for the process that holds the lock %s: %w", w.Lock, err)
	}
	defer func() { err = errors.Join(err, lock.Unlock()) }()
	w.reached("locked")
	return f()
}

func (w *Writer) replace(f *file, before, after []byte) error {
	if err := sameContent(f.path, before); err != nil {
		return err
	}
	temp, err := f.write(before, after, w.reached)
	if err != nil {
		return err
	}
	if err := sameContent(f.path, before); err != nil {
		return errors.Join(err, os.Remove(temp))
	}
	w.reached("compared")
	exchanged, err := w.exchangeOrRename(temp, f.path)
	if err != nil {
		return errors.Join(err, os.Remove(temp))
	}
	if !exchanged {
		temp = ""
	}
	w.reached("replaced")
	if err := syncDir(filepath.Dir(f.path)); err != nil {
		return err
	}
	w.reached("synced")
	return w.settle(f.path, temp, before, after)
}

// exchangeOrRename moves a temporary file to the given path. It returns true if it exchanged the two files. In that
// case, the old file now has the path of the temporary file.
func (w *Writer) exchangeOrRename(temp, path string) (exchanged bool, err error) {
	if !w.renameOnly {
		if err = exchange(temp, path); !errors.Is(err, errors.ErrUnsupported) {
			return err == nil, err
		}
	}
	return false, os.Rename(temp, path)
}

// settle waits, and then returns [ErrChanged] if another program has changed the file. temp is the path of the old
// file, or empty if the old file does not exist any more. If another program wrote to the old file after the
// comparison, settle restores the old file. settle can't be cancelled, because the new file is already in place, and
// removing the old file is safe only after this check.
func (w *Writer) settle(path, temp string, before, after []byte) error {
	if temp != "" {
		if err := sameContent(temp, before); err != nil {
			return giveBack(path, temp, after, err)
		}
	}
	wait := w.Settle
	if len(before) == 0 {
		wait = max(wait, settleEmpty)
	}
	<-time.After(wait)
	if temp != "" {
		if err := sameContent(temp, before); err != nil {
			return giveBack(path, temp, after, err)
		}
		if err := os.Remove(temp); err != nil {
			return err
		}
	}
	w.reached("settled")
	return sameContent(path, after)
}

// giveBack moves another program's content from the temporary file back to the given path. If the other program has
// since also written to the given path, that later content stays there.
func giveBack(path, temp string, after []byte, cause error) error {
	mine := after
	for range 8 {
		now, err := os.ReadFile(temp)
		if err != nil {
			return errors.Join(cause, err)
		}
		if err := exchange(temp, path); err != nil {
			return fmt.Errorf("%w: what it wrote is in %s: %w", cause, temp, err)
		}
		if sameContent(temp, mine) == nil {
			return errors.Join(cause, os.Remove(temp), syncDir(filepath.Dir(path)))
		}
		mine = now
	}
	return fmt.Errorf("%w again and again: one version is in %s: close the program", cause, temp)
}

// sameContent returns ErrChanged if the file does not have the given content.
func sameContent(path string, want []byte) error {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return ErrChanged
	}
	if err != nil {
		return err
	}
	h := sha256.New()
	_, err = io.Copy(h, io.LimitReader(f, int64(len(want))+1))
	sum := sha256.Sum256(want)
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	if !bytes.Equal(h.Sum(nil), sum[:]) {
		return ErrChanged
	}
	return nil
}
