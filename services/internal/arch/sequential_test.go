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

// The tests of packages that the Makefile calls sequential run without the race detector, because such a package starts
// nothing that could race: it has no goroutine, no channel, and no lock or atomic value.
func TestSequentialPackagesStartNothing(t *testing.T) {
	t.Parallel()
	makefile, err := os.ReadFile(filepath.Join(root, "..", "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	line := regexp.MustCompile(`(?m)^SEQUENTIAL := (.*)$`).FindSubmatch(makefile)
	if line == nil {
		t.Fatal("the Makefile does not say which packages are sequential")
	}
	packages := strings.Fields(string(line[1]))
	found := make(map[string]bool)
	eachFile(t, 0, func(file string, parsed *ast.File) {
		dir := path.Dir(file)
		if isTest(file) || !slices.Contains(packages, dir) {
			return
		}
		found[dir] = true
		if why := concurrent(parsed); why != "" {
			t.Errorf("%s has %s: take %s out of SEQUENTIAL in the Makefile", file, why, dir)
		}
	})
	for _, dir := range packages {
		if !found[dir] {
			t.Errorf("SEQUENTIAL in the Makefile names %s, which is no package", dir)
		}
	}
}

// concurrent returns what a file has that can race; empty for nothing. A value that is made once ([sync.OnceValues])
// can't.
func concurrent(file *ast.File) (why string) {
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
