package stdio

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/sluice-mesh/sluice/services/internal/datadir"
)

const (
	// unusedMark is the suffix of a marker file next to the directory of a server that no longer uses private directories.
	// No process of the server has used the directory after the modification time of this file.
	unusedMark = ".unused"
	// serverFolderTime is how long a server must be missing from the configuration before its private directories are
	// removed.
	serverFolderTime = 30 * 24 * time.Hour
)

// A WorkRoot is the absolute path of the directory in which private directories are created. It contains a directory
// for each server. Links inside it are never followed.
type WorkRoot string

// EndUnused renames the directory of each server for which isUsed returns false, if no process has used the directory
// for 30 days. The 30 days begin with the first call for which isUsed returns false for the server.
// [WorkRoot.RemoveEnded] removes the renamed directories. While EndUnused runs, no process of these servers may be
// started.
func (r WorkRoot) EndUnused(ctx context.Context, log *slog.Logger, isUsed func(server string) bool, now time.Time) error {
	root, entries, err := r.open()
	if root == nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		server, isMark := strings.CutSuffix(e.Name(), unusedMark)
		switch {
		case !serverName.MatchString(server):
		case isMark && (isUsed(server) || isMissing(root, server)):
			errs = append(errs, ignoreMissing(root.Remove(e.Name())))
		case isMark, !e.IsDir(), isUsed(server):
		default:
			errs = append(errs, r.endUnused(ctx, log, root, server, now))
		}
	}
	return errors.Join(append(errs, root.Close())...)
}

// open returns the directory and its entries. It returns nil if the directory does not exist or cannot be opened.
func (r WorkRoot) open() (*os.Root, []fs.DirEntry, error) {
	root, err := os.OpenRoot(string(r))
	if err != nil {
		return nil, nil, ignoreMissing(err)
	}
	entries, err := fs.ReadDir(root.FS(), ".")
	if err != nil {
		return nil, nil, errors.Join(err, root.Close())
	}
	return root, entries, nil
}

// endUnused marks the directory of a server as unused. If it was marked more than serverFolderTime ago, endUnused
// renames it, unless a process still uses it. Such a process can remain from an earlier gateway.
func (r WorkRoot) endUnused(ctx context.Context, log *slog.Logger, root *os.Root, server string, now time.Time) error {
	mark := server + unusedMark
	info, err := root.Lstat(mark)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		log.InfoContext(ctx, "private folders are removed in 30 days unless their server is configured again", "server", server, "folder", filepath.Join(string(r), server))
		return errors.Join(root.WriteFile(mark, nil, 0o600), root.Chtimes(mark, now, now))
	case err != nil:
		return err
	case now.Sub(info.ModTime()) < serverFolderTime:
		return nil
	case datadir.InUse(filepath.Join(string(r), server)):
		return root.Chtimes(mark, now, now)
	}
	if err := root.Rename(server, server+endedFolder); err != nil {
		return fmt.Errorf("rename the folder of server %s: %w", server, err)
	}
	return root.Remove(mark)
}

// RemoveEnded removes the directories that [WorkRoot.EndUnused] has renamed. If ctx is done before that, the next call
// removes the remaining directories.
func (r WorkRoot) RemoveEnded(ctx context.Context, log *slog.Logger) error {
	root, entries, err := r.open()
	if root == nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		server, ended := strings.CutSuffix(e.Name(), endedFolder)
		if !ended || !serverName.MatchString(server) || !e.IsDir() {
			continue
		}
		err := removeParts(ctx, root, e.Name())
		if errs = append(errs, err); err == nil {
			log.InfoContext(ctx, "private folders were removed, because their server has not been configured for 30 days", "server", server)
		}
	}
	return errors.Join(append(errs, root.Close())...)
}

// removeParts removes a directory entry by entry until ctx is done, because the directory may be large.
func removeParts(ctx context.Context, root *os.Root, dir string) error {
	parts, _ := fs.ReadDir(root.FS(), dir) // RemoveAllIn reports the error
	for _, part := range parts {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := datadir.RemoveAllIn(root, path.Join(dir, part.Name())); err != nil {
			return err
		}
	}
	return datadir.RemoveAllIn(root, dir)
}

func isMissing(root *os.Root, name string) bool {
	_, err := root.Lstat(name)
	return errors.Is(err, fs.ErrNotExist)
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
