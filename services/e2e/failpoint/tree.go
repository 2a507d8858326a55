package failpoint

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
)

// point matches the comment that defines a failpoint.
var point = regexp.MustCompile(`(?m)^\s*// gofail: var (\w+) struct\{\}$`)

type file struct {
	name string // relative to the root, with slashes
	text []byte
}

// tree contains the source files of the programs, sorted by name. These are the files in the workspace's modules,
// except for tests and test helpers.
type tree []file

// readTree reads the source tree that contains the working directory.
func readTree(ctx context.Context) (tree, error) {
	work, err := exec.CommandContext(ctx, "go", "env", "GOWORK").Output()
	if err != nil {
		return nil, fmt.Errorf("find go.work: %w", err)
	}
	root := filepath.Dir(strings.TrimSpace(string(work)))
	modules, err := modules(ctx, root)
	if err != nil {
		return nil, err
	}
	var t tree
	for _, name := range []string{"go.work", "go.work.sum"} {
		if err := t.add(root, name); err != nil {
			return nil, err
		}
	}
	for _, m := range modules {
		if err := t.walk(root, m); err != nil {
			return nil, err
		}
	}
	slices.SortFunc(t, func(a, b file) int { return cmp.Compare(a.name, b.name) })
	return t, nil
}

// modules returns the directories of the modules that are listed in go.work.
func modules(ctx context.Context, root string) ([]string, error) {
	cmd := exec.CommandContext(ctx, "go", "work", "edit", "-json")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("read go.work: %w", err)
	}
	var work struct{ Use []struct{ DiskPath string } }
	if err := json.Unmarshal(out, &work); err != nil {
		return nil, fmt.Errorf("read go.work: %w", err)
	}
	var dirs []string
	for _, use := range work.Use {
		dirs = append(dirs, path.Clean(use.DiskPath))
	}
	return dirs, nil
}

func (t *tree) add(root, name string) error {
	text, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(name)))
	if err != nil {
		return err
	}
	*t = append(*t, file{name, text})
	return nil
}

func (t *tree) walk(root, dir string) error {
	return fs.WalkDir(os.DirFS(root), dir, func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "testdata" || d.Name() == "node_modules" || isForTests(name)):
			return fs.SkipDir
		case !d.Type().IsRegular() || strings.HasSuffix(name, "_test.go"):
			return nil
		}
		return t.add(root, name)
	})
}

// isForTests reports whether a directory contains only test code.
func isForTests(dir string) bool {
	return dir == "services/e2e" || dir == "services/bench"
}

// digest returns a hash of all inputs of the build.
func (t tree) digest() string {
	h := sha256.New()
	fmt.Fprintln(h, gofail, programs(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
	for _, f := range t {
		fmt.Fprintf(h, "%s %d\n%s", f.name, len(f.text), f.text)
	}
	return hex.EncodeToString(h.Sum(nil))[:16]
}

// points returns the failpoints' names, grouped by directory.
func (t tree) points() map[string][]string {
	out := make(map[string][]string)
	for _, f := range t {
		if !strings.HasSuffix(f.name, ".go") {
			continue
		}
		for _, found := range point.FindAllSubmatch(f.text, -1) {
			out[path.Dir(f.name)] = append(out[path.Dir(f.name)], string(found[1]))
		}
	}
	return out
}

func (t tree) write(dir string) error {
	for _, f := range t {
		name := filepath.Join(dir, filepath.FromSlash(f.name))
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			return err
		}
		if err := os.WriteFile(name, f.text, 0o600); err != nil {
			return err
		}
	}
	return nil
}
