// Command codestats prints measurements of the code and of the documents, together with their goals: the sizes of
// functions and files, the number of private functions with one caller, the packages without tests, the number of words
// in documents, and the number of long lines in documents.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"
)

const (
	// A function should have at most longFunction lines, and must have at most longestFunction lines.
	longFunction, longestFunction = 40, 60
	// longLine is the maximum number of characters in a line of a document, except in tables and code.
	longLine = 120
)

func main() {
	if err := run(".", os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "codestats:", err)
		os.Exit(1)
	}
}

// run measures the project in the given directory and prints the measurements.
func run(top string, out io.Writer) error {
	code, err := measureCode(top)
	if err != nil {
		return err
	}
	docs, err := measureDocs(top)
	if err != nil {
		return err
	}
	rows := [][3]string{
		{"function, lines: median / p95 / max", fmt.Sprintf("10 / %d / %d", longFunction, longestFunction), formatSizes(code.functions)},
		{fmt.Sprintf("functions over %d lines", longFunction), "0", countOver(code.functions, longFunction)},
		{fmt.Sprintf("functions over %d lines", longestFunction), "0", countOver(code.functions, longestFunction)},
		{"file, lines: median / p95 / max", "150 / 350 / 500", formatSizes(code.files)},
		{"private functions with one caller", "30 %", fmt.Sprintf("%d %% of %d", 100*code.once/max(1, code.private), code.private)},
		{"packages without tests of their own", "0", fmt.Sprintf("%d %s", len(code.untested), strings.Join(code.untested, " "))},
		{"documents, words", "30000", fmt.Sprint(docs.words)},
		{fmt.Sprintf("documents, lines of text over %d characters", longLine), "0", fmt.Sprint(docs.long)},
	}
	for _, r := range rows {
		if _, err := fmt.Fprintf(out, "%-48s goal %-14s now %s\n", r[0], r[1], r[2]); err != nil {
			return err
		}
	}
	return nil
}

// formatSizes returns the median, the 95th percentile and the maximum of the numbers in sizes.
func formatSizes(sizes []int) string {
	if len(sizes) == 0 {
		return "none"
	}
	slices.Sort(sizes)
	return fmt.Sprintf("%d / %d / %d", sizes[len(sizes)/2], sizes[len(sizes)*95/100], sizes[len(sizes)-1])
}

func countOver(sizes []int, most int) string {
	n := 0
	for _, size := range sizes {
		if size > most {
			n++
		}
	}
	return fmt.Sprintf("%d of %d", n, len(sizes))
}

// code contains the measurements of Go code that is neither generated nor a test.
type code struct {
	functions, files []int
	// private is the number of private functions and methods. once is the number of private functions and methods that
	// are used only once in their package.
	private, once int
	// untested contains the packages with code but without a test file.
	untested []string
}

func measureCode(top string) (all code, err error) {
	folders := make(map[string][]*ast.File)
	tested := make(map[string]bool)
	fset := token.NewFileSet()
	for _, root := range []string{"services", "sdk"} {
		err = errors.Join(err, filepath.WalkDir(filepath.Join(top, root), func(path string, d fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case d.IsDir() && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || d.Name() == "node_modules"):
				return filepath.SkipDir
			case filepath.Ext(path) != ".go":
				return nil
			case strings.HasSuffix(path, "_test.go"):
				tested[filepath.Dir(path)] = true
				return nil
			}
			parsed, err := parser.ParseFile(fset, path, nil, parser.ParseComments)
			if err != nil || ast.IsGenerated(parsed) {
				return err
			}
			folders[filepath.Dir(path)] = append(folders[filepath.Dir(path)], parsed)
			all.files = append(all.files, fset.Position(parsed.FileEnd).Line)
			return nil
		}))
	}
	for folder, files := range folders {
		if !tested[folder] && files[0].Name.Name != "main" {
			all.untested = append(all.untested, folder)
		}
		all.count(fset, files)
	}
	slices.Sort(all.untested)
	return all, err
}

// count adds the functions of a package to the measurements.
func (c *code) count(fset *token.FileSet, files []*ast.File) {
	named := make(map[string]int)
	var private []string
	for _, file := range files {
		ast.Inspect(file, func(n ast.Node) bool {
			if name, ok := n.(*ast.Ident); ok {
				named[name.Name]++
			}
			return true
		})
		for _, decl := range file.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if !ok || f.Body == nil {
				continue
			}
			c.functions = append(c.functions, fset.Position(f.End()).Line-fset.Position(f.Pos()).Line+1)
			if !f.Name.IsExported() && f.Name.Name != "main" && f.Name.Name != "init" {
				private = append(private, f.Name.Name)
			}
		}
	}
	for _, name := range private {
		c.private++
		if named[name] == 2 { // one declaration and one use
			c.once++
		}
	}
}

// docs contains the measurements of README.md and docs/*.md. Decision records (docs/decisions) are not measured.
type docs struct{ words, long int }

func measureDocs(top string) (all docs, err error) {
	pages, err := filepath.Glob(filepath.Join(top, "docs", "*.md"))
	if err != nil {
		return all, err
	}
	for _, page := range append(pages, filepath.Join(top, "README.md")) {
		text, err := os.ReadFile(page)
		if err != nil {
			return all, err
		}
		all.words += len(bytes.Fields(text))
		inCode := false
		for line := range strings.Lines(string(text)) {
			line = strings.TrimRight(line, "\n")
			if strings.HasPrefix(line, "```") {
				inCode = !inCode
			}
			if !inCode && !strings.HasPrefix(line, "|") && utf8.RuneCountInString(line) > longLine {
				all.long++
			}
		}
	}
	return all, nil
}
