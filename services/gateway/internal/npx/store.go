package npx

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/sluice-mesh/sluice/services/internal/datadir"
)

const (
	// recordFile is a file that marks an installation as complete. It is outside the directory to which npm writes.
	recordFile = "program.json"
	// project is the directory in which npm installs the package.
	project = "program"
	// work is the directory to which the processes of an installation may write until the installation is complete.
	work = "work"
	// unusedMark is a file that marks an installation as not used by the configuration. The file's modification time is
	// when the installation was marked.
	unusedMark = "unused"
	// attemptPrefix is the prefix of the names of incomplete installations.
	attemptPrefix = "new-"
	// maxInstallations limits how many installations of one server are read.
	maxInstallations = 1000
)

// Grace is how long an installation is stored after the configuration has stopped using it. The time begins when a
// gateway first starts with a configuration that does not use the installation.
const Grace = 7 * 24 * time.Hour

// Installed is a complete installation. Its files do not change.
type Installed struct {
	// Dir is the absolute path of the installation's directory. Program is either the absolute path of a file in Dir or
	// the name of a program. A name is looked up first in the directory Bin and then in PATH.
	Dir, Program string
	// Version is the version of the package.
	Version string
	// Since is when the installation was completed.
	Since time.Time
}

// Bin returns the directory with the programs of the package and of its dependencies.
func (i *Installed) Bin() string { return filepath.Join(i.Dir, project, Bin) }

// Folder is the absolute path of the directory with one server's installations.
type Folder string

// recorded is the content of recordFile.
type recorded struct {
	Package string `json:"package"`
	Program string `json:"program"`
	Version string `json:"version"`
}

// Latest returns the newest installation with this digest, or nil if there is none.
func (f Folder) Latest(digest string) *Installed {
	var found *Installed
	for _, name := range f.names(digest + ".") {
		if one, err := f.read(name); err == nil && (found == nil || one.Since.After(found.Since)) {
			found = one
		}
	}
	return found
}

// names returns the names of the directory's entries that begin with the given prefix.
func (f Folder) names(prefix string) (names []string) {
	dir, err := os.Open(string(f))
	if err != nil {
		return nil
	}
	defer dir.Close() //nolint:errcheck // only read
	all, _ := dir.Readdirnames(maxInstallations)
	for _, name := range all {
		if strings.HasPrefix(name, prefix) {
			names = append(names, name)
		}
	}
	return names
}

func (f Folder) read(name string) (*Installed, error) {
	dir := filepath.Join(string(f), name)
	info, err := os.Lstat(filepath.Join(dir, recordFile))
	if err != nil {
		return nil, err
	}
	raw, err := os.ReadFile(filepath.Join(dir, recordFile))
	if err != nil {
		return nil, err
	}
	var r recorded
	if err := json.Unmarshal(raw, &r); err != nil {
		return nil, err
	}
	out := &Installed{Dir: dir, Program: r.Program, Version: r.Version, Since: info.ModTime()}
	if strings.ContainsRune(r.Program, '/') {
		if !filepath.IsLocal(r.Program) {
			return nil, fmt.Errorf("the program %q is not in the folder", r.Program)
		}
		out.Program = filepath.Join(dir, project, r.Program)
		if _, err := os.Stat(out.Program); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// Attempt is an installation that is not complete yet. No other attempt uses its directory.
type Attempt struct {
	folder Folder
	dir    string
}

// Begin creates the directories for a new installation.
func (f Folder) Begin() (*Attempt, error) {
	if err := os.MkdirAll(string(f), 0o700); err != nil {
		return nil, fmt.Errorf("make the folder of its package: %w", err)
	}
	dir, err := os.MkdirTemp(string(f), attemptPrefix)
	if err != nil {
		return nil, fmt.Errorf("make the folder of its package: %w", err)
	}
	a := &Attempt{f, dir}
	for _, sub := range []string{a.Project(), a.Home(), a.Cache(), a.Temporary()} {
		err = errors.Join(err, os.MkdirAll(sub, 0o700))
	}
	// Because of this file, npm uses this directory as the project, and not a parent directory.
	err = errors.Join(err, os.WriteFile(filepath.Join(a.Project(), "package.json"), []byte(`{"private": true}`+"\n"), 0o600))
	if err != nil {
		return nil, fmt.Errorf("make the folder of its package: %w", errors.Join(err, a.Remove()))
	}
	return a, nil
}

// Work returns the directory to which the processes of the installation may write. It contains the attempt's other
// directories.
func (a *Attempt) Work() string { return filepath.Join(a.dir, work) }

// Project returns the directory in which npm installs the package.
func (a *Attempt) Project() string { return filepath.Join(a.Work(), project) }

// Home returns the directory that npm uses as HOME. Commit removes this directory, Cache and Temporary.
func (a *Attempt) Home() string { return filepath.Join(a.Work(), "home") }

// Cache returns the directory of npm's cache.
func (a *Attempt) Cache() string { return filepath.Join(a.Work(), "cache") }

// Temporary returns the directory that npm uses as TMPDIR.
func (a *Attempt) Temporary() string { return filepath.Join(a.Work(), "tmp") }

// Commit completes the attempt, which becomes the newest installation with this digest. Commit follows no links that
// lead out of the directory, because the files that npm has installed are not trusted.
func (a *Attempt) Commit(c *Command, digest string) (*Installed, error) {
	final := filepath.Join(a.dir, project)
	if err := os.Rename(a.Project(), final); err != nil {
		return nil, fmt.Errorf("store the package: %w", err)
	}
	if info, err := os.Lstat(final); err != nil || !info.IsDir() {
		return nil, errors.New("store the package: its folder was replaced")
	}
	root, err := os.OpenRoot(final)
	if err != nil {
		return nil, fmt.Errorf("store the package: %w", err)
	}
	path, version, err := program(root, c.Program)
	if err := errors.Join(err, root.Close()); err != nil {
		return nil, err
	}
	if path == "" {
		path = c.Program
	}
	raw, err := json.Marshal(recorded{c.DisplayPackage(), path, version})
	if err != nil {
		return nil, fmt.Errorf("store the package: %w", err)
	}
	name := digest + strings.Replace(filepath.Base(a.dir), attemptPrefix, ".", 1)
	if err := errors.Join(
		datadir.RemoveAll(a.Work()), os.WriteFile(filepath.Join(a.dir, recordFile), raw, 0o600), syncFileSystem(a.dir), os.Rename(a.dir, filepath.Join(string(a.folder), name)),
	); err != nil {
		return nil, fmt.Errorf("store the package: %w", err)
	}
	return a.folder.read(name)
}

// Remove removes the directory of an attempt that has failed. It does nothing after Commit has succeeded.
func (a *Attempt) Remove() error { return datadir.RemoveAll(a.dir) }

// Remove removes the installation. The caller must make sure that no process uses it.
func (i *Installed) Remove() error { return datadir.RemoveAll(i.Dir) }

// Sweep removes unused entries from the directories below root. These are interrupted attempts, installations that a
// newer one has replaced, and installations that the configuration has not used for at least [Grace]. The caller passes
// the digest of each configured server's package, by server name. Sweep follows no links in root. It may be called only
// while the processes of the configured servers are stopped and no package is being installed.
func Sweep(root string, digests map[string]string, now time.Time) error {
	servers, err := os.ReadDir(root)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for packages that no server uses: %w", err)
	}
	var errs []error
	for _, server := range servers {
		if !server.IsDir() { // a link could lead to a directory that is not the gateway's
			continue
		}
		f := Folder(filepath.Join(root, server.Name()))
		var older *Installed
		if digest := digests[server.Name()]; digest != "" {
			older = f.Latest(digest)
		}
		for _, name := range f.names("") {
			if older != nil && filepath.Join(string(f), name) == older.Dir {
				errs = append(errs, ignoreMissing(os.Remove(filepath.Join(older.Dir, unusedMark))))
				continue
			}
			errs = append(errs, f.sweep(name, digests[server.Name()], now))
		}
		_ = os.Remove(string(f)) // fails unless the directory is empty
	}
	return errors.Join(errs...)
}

// sweep removes an entry of a directory if it is unused. If the configuration has just stopped using an installation,
// sweep only marks it as unused.
func (f Folder) sweep(name, digest string, now time.Time) error {
	dir := filepath.Join(string(f), name)
	if info, err := os.Lstat(dir); err != nil || info.Mode()&fs.ModeSymlink != 0 {
		return err
	}
	if _, err := f.read(name); err != nil || digest != "" && strings.HasPrefix(name, digest+".") {
		return datadir.RemoveAll(dir)
	}
	mark := filepath.Join(dir, unusedMark)
	info, err := os.Lstat(mark)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return os.WriteFile(mark, nil, 0o600)
	case err != nil:
		return err
	case now.Sub(info.ModTime()) < Grace:
		return nil
	case datadir.InUse(dir): // a process has outlived the gateway that started it
		return os.Chtimes(mark, now, now)
	}
	return datadir.RemoveAll(dir)
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
