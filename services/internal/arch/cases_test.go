package arch_test

import (
	"flag"
	"go/ast"
	"go/parser"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the generated parts of pages in docs")

// casesPage is the document that lists the tested attacks. For each attack it lists the files that contain its tests.
const casesPage = "../../../docs/security-cases.md"

var (
	// caseInName matches the id of a case in the name of a test, as in TestP1DuplicateNames.
	caseInName = regexp.MustCompile(`^Test[A-Za-z]*?([PHITARNUSX][0-9]{1,2})(?:[A-Z]|$)`)
	// caseInText matches the id before the name of a subtest, as in "T3: a hidden tool".
	caseInText = regexp.MustCompile(`^([PHITARNUSX][0-9]{1,2})[: ]`)
	// casesInComment matches the ids in a comment of a test, as in "Case X3." and "Cases A1, A2.".
	casesInComment = regexp.MustCompile(`\bCases? ([PHITARNUSX][0-9]{1,2}(?:, [PHITARNUSX][0-9]{1,2})*)\.`)
	// caseSection matches a section of docs/security-cases.md: the id of a case, and the lines that list the tests of
	// the case.
	caseSection = regexp.MustCompile(`(?m)^### ([A-Z][0-9]+) .*\n(?:.+\n)*?(Tests:.*(?:\n(?:\* |  ).*)*)$`)
)

// TestSecurityCases compares docs/security-cases.md with the tests that name a case. Each case must have a section, and
// each section must list the files of all tests of that case.
func TestSecurityCases(t *testing.T) {
	t.Parallel()
	found := casesInTests(t)
	raw, err := os.ReadFile(casesPage)
	if err != nil {
		t.Fatal(err)
	}
	page := string(raw)
	sections := make(map[string]bool)
	for _, section := range caseSection.FindAllStringSubmatch(page, -1) {
		id, lines := section[1], section[2]
		sections[id] = true
		want := testList(found[id])
		switch {
		case len(found[id]) == 0:
			t.Errorf("no test names %s: remove its section, or write `Case %[1]s.` in the comment of its test", id)
		case lines != want && *update:
			page = strings.Replace(page, section[0], strings.TrimSuffix(section[0], lines)+want, 1)
		case lines != want:
			t.Errorf("the page has a wrong list of tests for %s (-update writes it)\n got %s\nwant %s", id, lines, want)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(found)) {
		if !sections[id] {
			t.Errorf("%s has no section `### %s …` with `Tests:` in %s; its tests are %v", id, id, casesPage, found[id])
		}
	}
	if *update {
		if err := os.WriteFile(casesPage, []byte(page), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// testList returns a sentence that lists the files of tests, in lines of at most 120 characters.
func testList(files []string) string {
	line := "Tests:"
	var out strings.Builder
	for i, file := range files {
		part := " `" + file + "`,"
		if i == len(files)-1 {
			part = strings.TrimSuffix(part, ",") + "."
		}
		if len(line)+len(part) > 120 {
			out.WriteString(line + "\n")
			line = " "
		}
		line += part
	}
	out.WriteString(line)
	return out.String()
}

// casesInTests returns the files that contain tests that name a case. The key is the id of the case.
func casesInTests(t *testing.T) map[string][]string {
	t.Helper()
	found := make(map[string][]string)
	eachFile(t, parser.ParseComments|parser.SkipObjectResolution, func(file string, parsed *ast.File) {
		if !isTest(file) {
			return
		}
		for _, decl := range parsed.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if !ok || !isTestFunction(f) {
				continue
			}
			for id := range casesOf(f, parsed.Comments) {
				found[id] = append(found[id], file)
			}
		}
	})
	for id := range found {
		slices.Sort(found[id])
		found[id] = slices.Compact(found[id])
	}
	return found
}

// isTestFunction reports whether a function has a parameter of type *testing.T, which makes it a test or a test helper.
func isTestFunction(f *ast.FuncDecl) bool {
	for _, param := range f.Type.Params.List {
		if star, ok := param.Type.(*ast.StarExpr); ok {
			if of, ok := star.X.(*ast.SelectorExpr); ok && of.Sel.Name == "T" {
				return true
			}
		}
	}
	return false
}

// casesOf returns the ids of the cases that a function names in its comments, in its name, or in a string.
func casesOf(f *ast.FuncDecl, comments []*ast.CommentGroup) map[string]bool {
	ids := make(map[string]bool)
	if m := caseInName.FindStringSubmatch(f.Name.Name); m != nil {
		ids[m[1]] = true
	}
	for _, group := range comments {
		if group != f.Doc && (group.Pos() < f.Pos() || group.End() > f.End()) {
			continue
		}
		for _, m := range casesInComment.FindAllStringSubmatch(strings.Join(strings.Fields(group.Text()), " "), -1) {
			for id := range strings.SplitSeq(m[1], ", ") {
				ids[id] = true
			}
		}
	}
	ast.Inspect(f, func(n ast.Node) bool {
		if text, ok := n.(*ast.BasicLit); ok {
			if value, err := strconv.Unquote(text.Value); err == nil {
				if m := caseInText.FindStringSubmatch(value); m != nil {
					ids[m[1]] = true
				}
			}
		}
		return true
	})
	return ids
}
