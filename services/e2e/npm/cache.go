package npm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"time"

	"github.com/gofrs/flock"
)

const (
	marker         = ".complete"            // file in the directory of a complete install
	nodeLink       = ".bin/node"            // npm's link to the platform's binary, in node_modules
	patience       = 5 * time.Minute        // time limit of one install, including the wait for another process
	lockRetry      = 100 * time.Millisecond // pause between attempts to acquire the lock of another process
	maxErrorOutput = 2000                   // maximum length of npm's output in an error, in bytes
)

// Cache is a directory in which sets of npm packages are installed. Each version of a set has its own subdirectory.
// Several processes may share a cache. The zero value has no directory and installs nothing.
type Cache struct{ dir string }

// Open returns the user's cache, which is sluice/npm in the directory that [os.UserCacheDir] returns. Open does not
// create the directory.
func Open() (Cache, error) {
	user, err := os.UserCacheDir()
	if err != nil {
		return Cache{}, fmt.Errorf("find the user's cache folder: %w: set HOME or XDG_CACHE_HOME", err)
	}
	return At(filepath.Join(user, "sluice", "npm")), nil
}

// At returns the cache in dir, which must be an absolute path.
func At(dir string) Cache { return Cache{dir: dir} }

// Install returns the directory of a set, and installs the set if necessary. An install needs npm 9 or later in PATH
// and a connection to the npm registry. An installed set needs neither. Concurrent calls wait for each other, even in
// different processes. A failed install leaves no directory that a later call could use.
func (c Cache) Install(ctx context.Context, s Set) (Dir, error) {
	if c.dir == "" {
		return "", fmt.Errorf("install npm set %q: the cache has no folder: use npm.Open or npm.At", s)
	}
	files, digest, err := s.files()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(c.dir, string(s)+"-"+digest)
	if complete(dir) {
		return Dir(dir), nil
	}
	if err := c.installLocked(ctx, s, files, dir); err != nil {
		return "", fmt.Errorf("install npm set %q: %w", s, err)
	}
	return Dir(dir), nil
}

// NodeBinary returns the path of Node 22, and installs the set [Node] if necessary. The binary's directory contains no
// other program, so it may be added to PATH.
func (c Cache) NodeBinary(ctx context.Context) (string, error) {
	dir, err := c.Install(ctx, Node)
	if err != nil {
		return "", err
	}
	binary, err := filepath.EvalSymlinks(dir.Module(nodeLink))
	if err != nil {
		return "", fmt.Errorf("find Node: %w: remove %s and run this again", err, dir)
	}
	return binary, nil
}

func complete(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, marker))
	return err == nil
}

// installLocked holds the lock while it installs the set s into dir. If another process has installed the set already,
// installLocked installs nothing.
func (c Cache) installLocked(ctx context.Context, s Set, files fs.FS, dir string) (err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := os.MkdirAll(c.dir, 0o755); err != nil {
		return fmt.Errorf("make the cache folder: %w", err)
	}
	lock := flock.New(filepath.Join(c.dir, string(s)+".lock"))
	if _, err := lock.TryLockContext(ctx, lockRetry); err != nil {
		return fmt.Errorf("wait for the process that holds %s: %w", lock.Path(), err)
	}
	defer func() { err = errors.Join(err, lock.Unlock()) }()
	if complete(dir) {
		return nil
	}
	return c.installFresh(ctx, s, files, dir)
}

// installFresh installs the set into a temporary directory, and renames this directory to dir when the installation is
// complete. The caller must hold the lock.
func (c Cache) installFresh(ctx context.Context, s Set, files fs.FS, dir string) (err error) {
	unfinished := filepath.Join(c.dir, ".unfinished-"+string(s))
	// A process that was killed while it installed or removed a set might have left these directories.
	if err := errors.Join(os.RemoveAll(unfinished), os.RemoveAll(dir)); err != nil {
		return fmt.Errorf("remove an unfinished install: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(unfinished)) }()
	if err := os.CopyFS(unfinished, files); err != nil {
		return fmt.Errorf("write the manifest: %w", err)
	}
	if err := run(ctx, unfinished, s.install()); err != nil {
		return err
	}
	// npm succeeds even if it can't fetch an optional package. In the set Node, the package for each platform is
	// optional.
	if _, err := os.Stat(Dir(unfinished).Module(nodeLink)); s == Node && err != nil {
		return fmt.Errorf("npm installed no Node for %s/%s: see that `npm ping` answers; if it does, sets/node lacks "+
			"a package for this platform: add it and run relock.mjs", runtime.GOOS, runtime.GOARCH)
	}
	if err := os.WriteFile(filepath.Join(unfinished, marker), nil, 0o644); err != nil {
		return fmt.Errorf("mark the install complete: %w", err)
	}
	if err := os.Rename(unfinished, dir); err != nil {
		return fmt.Errorf("put the install in its place: %w", err)
	}
	return nil
}

func run(ctx context.Context, dir string, args []string) error {
	binary, err := exec.LookPath("npm")
	if err != nil {
		return fmt.Errorf("%w: install Node.js 20 or later, which brings npm (https://nodejs.org), and run this again; "+
			"npm then installs everything else", err)
	}
	var output bytes.Buffer
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Dir = dir
	cmd.Stdout, cmd.Stderr = &output, &output
	cmd.WaitDelay = time.Second
	if err := cmd.Run(); err != nil {
		said := output.Bytes()
		return fmt.Errorf("npm %s: %w\n%s\nThe first install needs npm 9 or later and a connection to npm's registry: "+
			"see that `npm --version` and `npm ping` answer, then run `go run ./e2e/npm/cmd/npm-warm` in services",
			args[0], err, said[max(0, len(said)-maxErrorOutput):])
	}
	return nil
}
