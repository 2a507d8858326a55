package arch_test

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"
)

var shrink = flag.Bool("shrink", false, "write the smaller counts of words to testdata/language.txt")

// avoided matches words that make a sentence hard to read, such as old forms and words that do not name who acts. Write
// "callers", "clients", "servers", "operators" and "approvers" for people and programs. Write "again", "recently" and
// "otherwise" for the other words.
var avoided = regexp.MustCompile(`(?i)\b(?:nobody|somebody|whoever|anew|of late|com(?:e|es|ing) by|came by|at hand|` +
	`(?:is|are|was|were) told|tells whether|is none|are none|beside|reasons? for which|decides? about|decisions? about|` +
	`(?:another|other) [a-z]+ than)\b`)

// plain matches avoided words in a form that is easy to read, as in "nil if there is none".
var plain = regexp.MustCompile(`(?i)\bthere (?:is|are) none\b`)

func countAvoided(text string) int {
	return len(avoided.FindAllString(text, -1)) - len(plain.FindAllString(text, -1))
}

// exceptions is the file that lists the number of avoided words that each file may have. A file that is not listed may
// not have any. The numbers may only decrease.
const exceptions = "testdata/language.txt"

// TestLanguage_AvoidedWordsOnlyGetFewer counts the avoided words in the comments and strings of Go files, in .proto
// files and in documents. After you have removed avoided words, run the test with -shrink.
func TestLanguage_AvoidedWordsOnlyGetFewer(t *testing.T) {
	t.Parallel()
	may := readExceptions(t)
	have := make(map[string]int)
	for _, file := range textFiles(t) {
		if n := countAvoidedIn(t, file); n > 0 {
			have[strings.TrimPrefix(filepath.ToSlash(file), filepath.ToSlash(repositoryRoot)+"/")] = n
		}
	}
	smaller := false
	for file, n := range have {
		if n > may[file] {
			t.Errorf("%s has %d avoided words, and may have %d; the words match %s", file, n, may[file], avoided)
		}
	}
	for file, n := range may {
		smaller = smaller || have[file] < n
	}
	switch {
	case t.Failed() || !smaller:
	case *shrink:
		writeExceptions(t, have)
	default:
		t.Errorf("there are fewer avoided words than %s says: run this test with -shrink", exceptions)
	}
}

// repositoryRoot is the root directory of the repository.
var repositoryRoot = filepath.Join(root, "..")

// textFiles returns the paths of all Go files, .proto files and documents of the repository.
func textFiles(t *testing.T) (files []string) {
	t.Helper()
	err := filepath.WalkDir(repositoryRoot, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() {
			if path != repositoryRoot && strings.HasPrefix(name, ".") || slices.Contains([]string{"node_modules", "testdata", "gen", "bin", "dist"}, name) {
				return filepath.SkipDir
			}
			return nil
		}
		if slices.Contains([]string{".go", ".md", ".proto"}, filepath.Ext(name)) && name != "language_test.go" {
			files = append(files, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// countAvoidedIn returns the number of avoided words in a file. In a Go file it counts only comments and strings.
func countAvoidedIn(t *testing.T, file string) (n int) {
	t.Helper()
	if filepath.Ext(file) != ".go" {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return countAvoided(string(raw))
	}
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	for _, group := range parsed.Comments {
		n += countAvoided(group.Text())
	}
	ast.Inspect(parsed, func(node ast.Node) bool {
		if text, ok := node.(*ast.BasicLit); ok && text.Kind == token.STRING {
			n += countAvoided(text.Value)
		}
		return true
	})
	return n
}

// readExceptions returns the number of avoided words that each file may have. Each line of the file of exceptions
// consists of a number and a path.
func readExceptions(t *testing.T) map[string]int {
	t.Helper()
	raw, err := os.ReadFile(exceptions)
	if err != nil {
		t.Fatal(err)
	}
	may := make(map[string]int)
	for line := range strings.Lines(string(raw)) {
		number, file, _ := strings.Cut(strings.TrimSpace(line), " ")
		n, err := strconv.Atoi(number)
		if err != nil {
			t.Fatalf("%s: %v", exceptions, err)
		}
		may[file] = n
	}
	return may
}

// writeExceptions writes the file of exceptions in descending order of the numbers.
func writeExceptions(t *testing.T, have map[string]int) {
	t.Helper()
	var lines []string
	for file, n := range have {
		lines = append(lines, fmt.Sprintf("%4d %s\n", n, file))
	}
	slices.SortFunc(lines, func(a, b string) int { return strings.Compare(b[:4]+a, a[:4]+b) })
	if err := os.WriteFile(exceptions, []byte(strings.Join(lines, "")), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestLanguage_LinesOfDocumentsFit checks that the lines of documents, except in tables and code, have at most 120
// characters.
func TestLanguage_LinesOfDocumentsFit(t *testing.T) {
	t.Parallel()
	for _, file := range textFiles(t) {
		if filepath.Ext(file) != ".md" {
			continue
		}
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		inCode := false
		for i, line := range strings.Split(string(raw), "\n") {
			if strings.HasPrefix(line, "```") {
				inCode = !inCode
			}
			if !inCode && !strings.HasPrefix(strings.TrimSpace(line), "|") && utf8.RuneCountInString(line) > 120 {
				t.Errorf("%s:%d has %d characters; at most 120 are allowed", file, i+1, utf8.RuneCountInString(line))
			}
		}
	}
}
