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
	packages := packagesIn(t, "SEQUENTIAL")
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

// packagesIn returns the packages in a variable of the Makefile.
func packagesIn(t *testing.T, variable string) []string {
	t.Helper()
	makefile, err := os.ReadFile(filepath.Join(root, "..", "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	line := regexp.MustCompile(`(?m)^` + variable + ` := (.*)$`).FindSubmatch(makefile)
	if line == nil {
		t.Fatalf("the Makefile has no variable %s", variable)
	}
	return strings.Fields(string(line[1]))
}

// TestSeeded_TestsRunWithoutTheRaceDetectorToo checks the tests that call norace.Some. With the race detector, they
// check only some of their cases. `make test` runs them without it if their names contain "Seeded", "EveryByte" or
// "Thousands", and the variable SEEDED of the Makefile contains their packages.
func TestSeeded_TestsRunWithoutTheRaceDetectorToo(t *testing.T) {
	t.Parallel()
	packages, names, seen := packagesIn(t, "SEEDED"), regexp.MustCompile(`^Test.*(Seeded|EveryByte|Thousands)`), 0
	eachFile(t, 0, func(file string, parsed *ast.File) {
		for _, declaration := range parsed.Decls {
			ast.Inspect(declaration, func(n ast.Node) bool {
				if !isSelector(n, "norace", "Some") {
					return true
				}
				seen++
				function, _ := declaration.(*ast.FuncDecl)
				if function == nil || !names.MatchString(function.Name.Name) || !slices.Contains(packages, path.Dir(file)) {
					t.Errorf("%s calls norace.Some outside of a test that `make test` runs without the race detector", file)
				}
				return true
			})
		}
	})
	if seen == 0 {
		t.Error("no test calls norace.Some")
	}
}

// isSelector reports whether a node is a name that is selected from a package.
func isSelector(n ast.Node, pkg, name string) bool {
	selector, ok := n.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	of, ok := selector.X.(*ast.Ident)
	return ok && of.Name == pkg && selector.Sel.Name == name
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
