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

// avoided are words that make a text hard to read: pronouns without a noun, and old forms. Callers, clients, servers,
// operators and approvers have names; "again", "recently", "otherwise" and "reports whether" say the rest.
var avoided = regexp.MustCompile(`(?i)\b(?:nobody|somebody|whoever|anew|of late|com(?:e|es|ing) by|came by|at hand|` +
	`(?:is|are|was|were) told|tells whether|is none|are none|beside)\b`)

// plain has the avoided words in a form that is plain: "nil if there is none".
var plain = regexp.MustCompile(`(?i)\bthere (?:is|are) none\b`)

// count returns how many avoided words a text has.
func count(text string) int {
	return len(avoided.FindAllString(text, -1)) - len(plain.FindAllString(text, -1))
}

// exceptions is the list of files that still have avoided words, with their number. It only shrinks: a file that is not
// in it has none.
const exceptions = "testdata/language.txt"

// TestLanguage_AvoidedWordsOnlyGetFewer counts avoided words in comments and texts of Go files, in contracts and in
// documents. Run it with -shrink after some have gone.
func TestLanguage_AvoidedWordsOnlyGetFewer(t *testing.T) {
	t.Parallel()
	may := readExceptions(t)
	have := make(map[string]int)
	for _, file := range texts(t) {
		if n := avoidedIn(t, file); n > 0 {
			have[strings.TrimPrefix(filepath.ToSlash(file), filepath.ToSlash(top)+"/")] = n
		}
	}
	smaller := false
	for file, n := range have {
		if n > may[file] {
			t.Errorf("%s has %d avoided words, and may have %d; the words are %s", file, n, may[file], avoided)
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

// top is the folder of the whole project.
var top = filepath.Join(root, "..")

// texts are the files that people read.
func texts(t *testing.T) (files []string) {
	t.Helper()
	err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() {
			if path != top && strings.HasPrefix(name, ".") || slices.Contains([]string{"node_modules", "testdata", "gen", "bin", "dist"}, name) {
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

// avoidedIn counts the avoided words of a file: of Go those in comments and texts.
func avoidedIn(t *testing.T, file string) (n int) {
	t.Helper()
	if filepath.Ext(file) != ".go" {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return count(string(raw))
	}
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	for _, group := range parsed.Comments {
		n += count(group.Text())
	}
	ast.Inspect(parsed, func(node ast.Node) bool {
		if text, ok := node.(*ast.BasicLit); ok && text.Kind == token.STRING {
			n += count(text.Value)
		}
		return true
	})
	return n
}

// readExceptions reads the list, of which each line is a number and a file.
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

// writeExceptions writes the list, the most words first.
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

// TestLanguage_LinesOfDocumentsFit holds lines of documents to 120 characters. Tables and code may have longer ones.
func TestLanguage_LinesOfDocumentsFit(t *testing.T) {
	t.Parallel()
	for _, file := range texts(t) {
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
				t.Errorf("%s:%d has %d characters; 120 fit", file, i+1, utf8.RuneCountInString(line))
			}
		}
	}
}
