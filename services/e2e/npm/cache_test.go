package npm_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/sluice-mesh/sluice/services/e2e/npm"
)

// installFakeNpm installs script as the program npm. PATH contains only this program and the system's programs. In the
// script, $TALLY is the path of the file tally. The script can count how often it was run by appending a line to this
// file each time.
func installFakeNpm(t *testing.T, script string) (tally string) {
	t.Helper()
	bin := t.TempDir()
	tally = filepath.Join(t.TempDir(), "tally")
	text := fmt.Sprintf("#!/bin/sh\nTALLY=%s\n%s\n", tally, script)
	if err := os.WriteFile(filepath.Join(bin, "npm"), []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":/usr/bin:/bin")
	return tally
}

const (
	works = `echo "$@" >> $TALLY; mkdir -p node_modules/sdk node_modules/.bin; touch node_modules/sdk/index.js node_modules/.bin/node`
	fails = `mkdir -p node_modules/half; echo "network is unreachable" >&2; exit 7`
)

func countRuns(t *testing.T, tally string) int {
	t.Helper()
	text, err := os.ReadFile(tally)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(text), "\n")
}

func TestInstall_ConcurrentCallsInstallOnce(t *testing.T) {
	tally := installFakeNpm(t, "sleep 0.2; "+works)
	dir := t.TempDir()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			installed, err := npm.At(dir).Install(t.Context(), npm.TypeScriptSDK)
			if err != nil {
				t.Error(err)
				return
			}
			if _, err := os.Stat(installed.Module("sdk/index.js")); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if got := countRuns(t, tally); got != 1 {
		t.Errorf("npm ran %d times, want once", got)
	}
}

func TestInstall_RunsNoInstallScripts(t *testing.T) {
	tally := installFakeNpm(t, works)
	for _, set := range npm.Sets() {
		if _, err := npm.At(t.TempDir()).Install(t.Context(), set); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(tally)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, "ci --ignore-scripts ") {
			t.Errorf("npm was run as: npm %s", line)
		}
	}
}

func TestInstall_InstalledSetNeedsNoNpm(t *testing.T) {
	installFakeNpm(t, works)
	cache := npm.At(t.TempDir())
	first, err := cache.Install(t.Context(), npm.ClaudeFlow)
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", t.TempDir())
	if again, err := cache.Install(t.Context(), npm.ClaudeFlow); err != nil || again != first {
		t.Errorf("installed in %s, then found %s, %v", first, again, err)
	}
}

func TestInstall_FailureSaysWhatToDoAndLeavesNothing(t *testing.T) {
	installFakeNpm(t, fails)
	dir := t.TempDir()
	_, err := npm.At(dir).Install(t.Context(), npm.TypeScriptSDK)
	if err == nil {
		t.Fatal("npm failed and the install did not")
	}
	for _, want := range []string{`npm set "typescript-sdk"`, "network is unreachable", "npm ping", "npm-warm"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error lacks %q: %v", want, err)
		}
	}
	left, err := filepath.Glob(filepath.Join(dir, "*", "node_modules"))
	if err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}

	installFakeNpm(t, works)
	if _, err := npm.At(dir).Install(t.Context(), npm.TypeScriptSDK); err != nil {
		t.Errorf("after a failed install another: %v", err)
	}
}

func TestInstall_WithoutNodeFails(t *testing.T) {
	installFakeNpm(t, "mkdir node_modules # each Node is optional, and none came")
	cache := npm.At(t.TempDir())
	if _, err := cache.NodeBinary(t.Context()); err == nil || !strings.Contains(err.Error(), "npm installed no Node for") {
		t.Errorf("with no Node installed: %v", err)
	}
	installFakeNpm(t, works)
	if _, err := cache.NodeBinary(t.Context()); err != nil {
		t.Errorf("after that failure: %v", err)
	}
}

func TestInstall_UnmarkedFolderIsInstalledAgain(t *testing.T) {
	tally := installFakeNpm(t, works)
	cache := npm.At(t.TempDir())
	dir, err := cache.Install(t.Context(), npm.TypeScriptSDK)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(string(dir), ".complete")); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(dir.Module("sdk/index.js")); err != nil {
		t.Fatal(err)
	}
	if _, err := cache.Install(t.Context(), npm.TypeScriptSDK); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir.Module("sdk/index.js")); err != nil || countRuns(t, tally) != 2 {
		t.Errorf("npm ran %d times, want 2; %v", countRuns(t, tally), err)
	}
}

func TestInstall_MissingNpmErrorSaysWhatToInstall(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	_, err := npm.At(t.TempDir()).NodeBinary(t.Context())
	if err == nil || !strings.Contains(err.Error(), "install Node.js 20 or later, which brings npm") {
		t.Errorf("without npm: %v", err)
	}
}

func TestInstall_InvalidSetOrCacheIsRefused(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		cache npm.Cache
		set   npm.Set
		want  string
	}{
		"a cache without a folder": {npm.Cache{}, npm.Node, "use npm.Open or npm.At"},
		"a set that is not there":  {npm.At(t.TempDir()), "left-pad", `find npm set "left-pad"`},
		"no set at all":            {npm.At(t.TempDir()), "", `find npm set ""`},
		"a set outside the folder": {npm.At(t.TempDir()), "../sets/node", "find npm set"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, err := tt.cache.Install(t.Context(), tt.set); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want %q in it", err, tt.want)
			}
		})
	}
}

func TestLockFiles_PinEveryPackageAndNameNoRegistry(t *testing.T) {
	t.Parallel()
	for _, set := range npm.Sets() {
		text, err := os.ReadFile(filepath.Join("sets", string(set), "package-lock.json"))
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), "://") || strings.Contains(string(text), `"resolved"`) {
			t.Errorf("%s: the lock file names a host; make it with relock.mjs", set)
		}
		pinned := strings.Count(string(text), `"integrity": "sha512-`) + strings.Count(string(text), `"inBundle": true`)
		if entries := strings.Count(string(text), "\n    \"node_modules/"); entries == 0 || pinned != entries {
			t.Errorf("%s: %d packages, %d of them pinned by a digest", set, entries, pinned)
		}
	}
}
