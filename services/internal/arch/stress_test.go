package arch_test

import (
	"go/ast"
	"go/parser"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	// testName matches the name of a test, or the beginning of such a name, in a line of e2e/stress.sh.
	testName = regexp.MustCompile(`\bTest[A-Z]\w*`)
	// packagePath matches the path of a package in a line of e2e/stress.sh.
	packagePath = regexp.MustCompile(`\s\./([a-z0-9/]+)`)
)

// TestStress_RunsNameExistingTests checks the tests that the script of `make stress` names. Each test must exist in a
// package that the same line names, because `go test -run` also succeeds if there is no such test.
func TestStress_RunsNameExistingTests(t *testing.T) {
	t.Parallel()
	script, err := os.ReadFile(filepath.Join(root, "e2e", "stress.sh"))
	if err != nil {
		t.Fatal(err)
	}
	tests := make(map[string][]string) // the names of all tests, by the directory of their package
	eachFile(t, parser.SkipObjectResolution, func(file string, parsed *ast.File) {
		for _, decl := range parsed.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && isTest(file) && f.Recv == nil {
				tests[path.Dir(file)] = append(tests[path.Dir(file)], f.Name.Name)
			}
		}
	})
	checked := 0
	for line := range strings.Lines(strings.ReplaceAll(string(script), "\\\n", "")) {
		packages := packagePath.FindAllStringSubmatch(line, -1)
		if len(packages) == 0 {
			continue
		}
		for _, name := range testName.FindAllString(line, -1) {
			checked++
			if !slices.ContainsFunc(packages, func(p []string) bool {
				return slices.ContainsFunc(tests[p[1]], func(test string) bool { return strings.HasPrefix(test, name) })
			}) {
				t.Errorf("e2e/stress.sh names the test %s, which is not in %v", name, packages)
			}
		}
	}
	if checked < 15 {
		t.Errorf("only %d names of tests were checked", checked)
	}
}
