package atomicfile

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// A file describes a file that will be replaced.
type file struct {
	// path contains no symbolic links.
	path string
	mode fs.FileMode
	// gid is the group of the old file. If it is -1, the new file keeps its group.
	gid int
}

// resolve returns path without symbolic links. It returns an error if the result is outside w.Within.
func (w *Writer) resolve(path string) (string, error) {
	target, err := filepath.EvalSymlinks(path)
	if err != nil || w.Within == "" {
		return target, err
	}
	within, err := filepath.EvalSymlinks(w.Within)
	if err != nil {
		return "", err
	}
	if within, err = filepath.Abs(within); err != nil {
		return "", err
	}
	if target, err = filepath.Abs(target); err != nil {
		return "", err
	}
	if below, err := filepath.Rel(within, target); err != nil || !filepath.IsLocal(below) {
		return "", fmt.Errorf("leads to %s, which is outside the directory %s: replace the link with a file", target, w.Within)
	}
	return target, nil
}

// resolveNew is like resolve, but the file need not exist.
func (w *Writer) resolveNew(path string) (string, error) {
	dir, err := w.resolve(filepath.Dir(path))
	return filepath.Join(dir, filepath.Base(path)), err
}

// removeLeftovers removes the temporary files that belong to a file that does not exist.
func (w *Writer) removeLeftovers(path string) error {
	target, err := w.resolveNew(path)
	if err != nil {
		return err
	}
	return (&file{path: target}).removeLeftovers()
}

// open follows the links in path and returns the file. It returns an error if the file can't be replaced.
func (w *Writer) open(path string) (*file, error) {
	target, err := w.resolve(path)
	if err != nil {
		return nil, err
	}
	// A killed Create can leave a temporary file that is a hard link to the file. It is removed first, because checkOwner
	// refuses a file with several hard links.
	if err := (&file{path: target}).removeLeftovers(); err != nil {
		return nil, err
	}
	info, err := os.Lstat(target)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("is not a regular file: edit it yourself")
	}
	if info.Mode().Perm()&0o200 == 0 {
		return nil, errors.New("is read-only: make it writable, or edit the file from which it is generated")
	}
	f := &file{path: target, mode: info.Mode().Perm(), gid: -1}
	return f, errors.Join(f.checkOwner(info), f.checkACL())
}

// tempName returns the name of the temporary file. The name contains the beginnings of the digests of the old and the
// new content. A later call uses these digests to decide whether it may remove the temporary file.
func (f *file) tempName(before, after []byte) string {
	return fmt.Sprintf("%s%s-%s", f.tempPrefix(), shortDigest(before), shortDigest(after))
}

func (f *file) tempPrefix() string {
	return filepath.Join(filepath.Dir(f.path), "."+filepath.Base(f.path)+".sluice-")
}

const partSuffix = ".part"

// tempForm matches the part after tempPrefix in the name of a temporary file.
var tempForm = regexp.MustCompile(`^[0-9a-f]{32}-[0-9a-f]{32}(?:\.part)?$`)

func shortDigest(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:16])
}

// write writes the new content to a temporary file and returns its name.
func (f *file) write(before, after []byte, reached func(string)) (name string, err error) {
	name = f.tempName(before, after)
	part := name + partSuffix
	out, err := os.OpenFile(part, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrPermission) {
		return "", fmt.Errorf("the directory is read-only: make it writable, or edit the file yourself: %w", err)
	}
	if err != nil {
		return "", err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(part))
		}
	}()
	reached("created")
	_, err = out.Write(after)
	reached("written")
	if err = errors.Join(err, f.copyMode(out), out.Sync(), out.Close()); err != nil {
		return "", err
	}
	if err = os.Rename(part, name); err != nil {
		return "", err
	}
	reached("complete")
	return name, nil
}

// copyMode gives the temporary file the mode and the group of the file that it will replace, and removes its access
// control list. If the process may not set the group, the group gets no permissions.
func (f *file) copyMode(out *os.File) error {
	if err := removeACL(out); err != nil {
		return err
	}
	mode := f.mode
	if f.gid >= 0 && out.Chown(-1, f.gid) != nil {
		mode &^= 0o070
	}
	return out.Chmod(mode)
}

// removeLeftovers removes the temporary files of killed processes. It returns an error if a temporary file may contain
// another program's content.
func (f *file) removeLeftovers() error {
	entries, err := os.ReadDir(filepath.Dir(f.path))
	if err != nil {
		return err
	}
	for _, e := range entries {
		name := filepath.Join(filepath.Dir(f.path), e.Name())
		digests, ours := strings.CutPrefix(name, f.tempPrefix())
		if !ours || !tempForm.MatchString(digests) || !e.Type().IsRegular() {
			continue
		}
		if info, err := e.Info(); errors.Is(err, fs.ErrNotExist) || err == nil && !ownedByProcess(info) {
			continue
		} else if err != nil {
			return err
		}
		if !strings.HasSuffix(digests, partSuffix) {
			content, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			before, after, _ := strings.Cut(digests, "-")
			if have := shortDigest(content); have != before && have != after {
				return fmt.Errorf("%w: what it wrote may be in %s: compare the two, then remove this file", ErrChanged, name)
			}
		}
		if err := os.Remove(name); err != nil {
			return err
		}
	}
	return nil
}
