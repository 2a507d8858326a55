package failpoint

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"github.com/gofrs/flock"
)

const (
	// gofail is the module that contains the tool and its runtime, at a pinned version.
	gofail = "go.etcd.io/gofail@v0.2.0"
	// patience limits how long a build takes, including the time spent waiting for another process.
	patience  = 10 * time.Minute
	lockRetry = 100 * time.Millisecond
	// cacheLifetime is how long an unused build stays in the cache.
	cacheLifetime = 7 * 24 * time.Hour
)

// programs returns the packages of the programs to build, relative to the directory services.
func programs() []string { return []string{"./sluice/cmd/sluice", "./approval/cmd/approval"} }

// Build is a set of programs with failpoints enabled.
type Build struct {
	// Sluice and Approval are the paths of the two programs.
	Sluice, Approval string
	// Digest identifies the sources. Equal sources have equal digests.
	Digest string
	// Points contains the failpoints' names, sorted.
	Points []string
}

// Open returns the programs that are built from the source tree that contains the working directory. If they are not in
// the cache, Open builds them. Concurrent calls wait for each other, even in different processes.
func Open(ctx context.Context) (Build, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	t, err := readTree(ctx)
	if err != nil {
		return Build{}, fmt.Errorf("build with failpoints: %w", err)
	}
	user, err := os.UserCacheDir()
	if err != nil {
		return Build{}, fmt.Errorf("build with failpoints: %w: set HOME or XDG_CACHE_HOME", err)
	}
	cache := filepath.Join(user, "sluice", "failpoints")
	dir := filepath.Join(cache, t.digest())
	b := Build{Sluice: filepath.Join(dir, "sluice"), Approval: filepath.Join(dir, "approval"), Digest: t.digest(), Points: slices.Concat(slices.Collect(maps.Values(t.points()))...)}
	slices.Sort(b.Points)
	if err := t.buildIfMissing(ctx, cache, dir); err != nil {
		return Build{}, fmt.Errorf("build with failpoints: %w", err)
	}
	return b, nil
}

// buildIfMissing builds the programs into dir unless dir exists.
func (t tree) buildIfMissing(ctx context.Context, cache, dir string) (err error) {
	if err := os.MkdirAll(cache, 0o700); err != nil {
		return err
	}
	lock := flock.New(filepath.Join(cache, "lock"))
	if _, err := lock.TryLockContext(ctx, lockRetry); err != nil {
		return fmt.Errorf("wait for the process that holds %s: %w", lock.Path(), err)
	}
	defer func() { err = errors.Join(err, lock.Unlock()) }()
	now := time.Now()
	if _, err := os.Stat(dir); err == nil {
		return os.Chtimes(dir, now, now)
	}
	if err := prune(cache, now.Add(-cacheLifetime)); err != nil {
		return err
	}
	return t.build(ctx, filepath.Join(cache, ".unfinished"), dir)
}

// prune removes the builds that were last used before the given time.
func prune(cache string, before time.Time) error {
	entries, err := os.ReadDir(cache)
	if err != nil {
		return err
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			return err
		}
		if e.IsDir() && info.ModTime().Before(before) {
			if err := os.RemoveAll(filepath.Join(cache, e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// build builds the programs in a temporary directory and moves them to dir. Before it returns, it always removes the
// temporary directory.
func (t tree) build(ctx context.Context, unfinished, dir string) (err error) {
	if err := os.RemoveAll(unfinished); err != nil { // an earlier build may have been killed
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(unfinished)) }()
	if err := t.write(unfinished); err != nil {
		return err
	}
	services, out := filepath.Join(unfinished, "services"), filepath.Join(unfinished, "out")
	enable := []string{"run", gofail, "enable"}
	for _, at := range slices.Sorted(maps.Keys(t.points())) {
		enable = append(enable, filepath.Join(unfinished, filepath.FromSlash(at)))
	}
	build := append([]string{"build", "-trimpath", "-buildvcs=false", "-o", out + "/"}, programs()...)
	// `go get` reads go.mod without the replacements in go.work.
	replace := []string{"mod", "edit", "-replace=github.com/sluice-mesh/sluice/gen=../gen"}
	for _, args := range [][]string{enable, replace, {"get", gofail}, build} {
		if err := run(ctx, services, args...); err != nil {
			return err
		}
	}
	return os.Rename(out, dir)
}

// run runs the go command in dir, with the copied source tree's workspace.
func run(ctx context.Context, dir string, args ...string) error {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOWORK="+filepath.Join(filepath.Dir(dir), "go.work"))
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go %v: %w\n%s", args, err, out)
	}
	return nil
}
