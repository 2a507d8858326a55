package arch_test

import (
	"go/ast"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestSequential_PackagesStartNoGoroutines checks the packages in the variable SEQUENTIAL of the Makefile. The tests of
// these packages run without the race detector, so the packages may not use goroutines, channels, locks or atomic
// values.
func TestSequential_PackagesStartNoGoroutines(t *testing.T) {
	t.Parallel()
	makefile, err := os.ReadFile(filepath.Join(root, "..", "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	line := regexp.MustCompile(`(?m)^SEQUENTIAL := (.*)$`).FindSubmatch(makefile)
	if line == nil {
		t.Fatal("the Makefile has no variable SEQUENTIAL")
	}
	packages := strings.Fields(string(line[1]))
	found := make(map[string]bool)
	eachFile(t, 0, func(file string, parsed *ast.File) {
		dir := path.Dir(file)
		if !slices.Contains(packages, dir) {
			return
		}
		found[dir] = true
		if why := findConcurrency(parsed); why != "" && !isTest(file) {
			t.Errorf("%s has %s: remove %s from SEQUENTIAL in the Makefile", file, why, dir)
		}
	})
	for _, dir := range packages {
		if !found[dir] {
			t.Errorf("SEQUENTIAL in the Makefile names %s, which is not a package", dir)
		}
	}
}

// findConcurrency returns a description of the first construct in a file that can cause a data race, or an empty string
// if there is none. A value from [sync.OnceValues] cannot cause a data race.
func findConcurrency(file *ast.File) (why string) {
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			why = "a goroutine"
		case *ast.ChanType:
			why = "a channel"
		case *ast.ImportSpec:
			if p := strings.Trim(n.Path.Value, `"`); p == "sync/atomic" || strings.HasPrefix(p, "golang.org/x/sync") {
				why = p
			}
		case *ast.SelectorExpr:
			of, _ := n.X.(*ast.Ident)
			if of != nil && of.Name == "sync" && !strings.HasPrefix(n.Sel.Name, "Once") || n.Sel.Name == "Go" {
				why = "a lock, or starts something"
			}
		}
		return why == ""
	})
	return why
}
