// Command callpath counts the code that a reader must read to follow one allowed call over HTTP through the gateway. It
// lists the functions that run, by file. To find these functions, it builds command call with -cover and runs it.
package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/tools/cover"
)

const (
	module = "github.com/sluice-mesh/sluice/services/"
	// gateway is the directory whose code is counted, relative to the module's root.
	gateway = "gateway"
	// caller is the package of the program that makes the call. The package must be covered too, because a Go program
	// writes coverage data only if its main package is covered.
	caller = "bench/callpath/call"
	short  = 7
)

// leafPackages contains packages whose functions have names that tell a reader enough. These packages do not handle
// calls themselves. For example, they parse messages. Their functions are counted separately.
var leafPackages = map[string]bool{
	"gateway/internal/jsonrpc": true, "gateway/internal/mcp": true, "gateway/internal/meters": true, "gateway/internal/refusal": true,
	"gateway/internal/limits": true, "gateway/internal/spans": true, "gateway/internal/bodyreader": true, "internal/redact": true, "gateway/internal/httpclient": true,
	"gateway/internal/visibility": true,
}

// callPackages contains the packages that handle a call. The command counts their methods that assign to fields of
// their receivers.
var callPackages = map[string]bool{
	"gateway/internal/mcpserver": true, "gateway/internal/protocol": true, "gateway/internal/protocol/v2025": true,
	"gateway/internal/protocol/v2026": true, "gateway/internal/protocol/allservers": true, "gateway/internal/dispatch": true,
	"gateway/internal/pipeline": true, "gateway/internal/approvals": true, "gateway/internal/attempt": true,
}

func main() {
	if err := run(context.Background(), os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "callpath:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer) error {
	profiles, err := coverProfiles(ctx)
	if err != nil {
		return err
	}
	src, err := readSource(gateway)
	if err != nil {
		return err
	}
	var way, passing, apart []*function
	for _, f := range src.functions {
		switch {
		case !wasRun(f, profiles[f.file]):
		case leafPackages[path.Dir(f.file)]:
			apart = append(apart, f)
		case f.lines() > short:
			way = append(way, f)
		default:
			passing = append(passing, f)
		}
	}
	if len(way) == 0 {
		return fmt.Errorf("no function of %s ran: the profile names other files", gateway)
	}
	var text strings.Builder
	for file, functions := range byFile(way) {
		names := make([]string, len(functions))
		for i, f := range functions {
			names[i] = fmt.Sprintf("%s (%d)", f.name, f.lines())
		}
		fmt.Fprintf(&text, "%s: %s\n", file, strings.Join(names, ", "))
	}
	fmt.Fprintf(&text, `
an allowed call over HTTP, warm:
  %3d functions of more than %d lines in %d files handle it, %d lines
  %3d shorter functions in %d files
  %3d functions in %d files of packages that are understood by their names (%s)
%s has %d files with %d lines; %d methods of the packages that handle calls assign to fields of their receivers
`,
		len(way), short, files(way), lines(way), len(passing), files(passing), len(apart), files(apart), packages(apart),
		gateway, src.files, src.lines, len(src.changing))
	for _, f := range src.changing {
		fmt.Fprintf(&text, "  %s: %s\n", f.file, f.name)
	}
	_, err = io.WriteString(out, text.String())
	return err
}

// coverProfiles makes the call and returns the coverage profiles of files. The keys are the paths of the files in the
// module.
func coverProfiles(ctx context.Context) (map[string]*cover.Profile, error) {
	dir, err := os.MkdirTemp("", "sluice-way-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	program, profile := filepath.Join(dir, "call"), filepath.Join(dir, "profile")
	counters, atEnd := filepath.Join(dir, "counters"), filepath.Join(dir, "end") // when the program exits, it also writes the coverage of its shutdown
	if err := errors.Join(os.Mkdir(counters, 0o700), os.Mkdir(atEnd, 0o700)); err != nil {
		return nil, err
	}
	for _, args := range [][]string{
		{"go", "build", "-trimpath", "-cover", "-covermode=atomic", "-coverpkg=" + module + gateway + "/...," + module + caller, "-o", program, module + caller},
		{program, counters},
		{"go", "tool", "covdata", "textfmt", "-i=" + counters, "-o=" + profile},
	} {
		cmd := exec.CommandContext(ctx, args[0], args[1:]...)
		cmd.Env = append(os.Environ(), "GOCOVERDIR="+atEnd)
		if said, err := cmd.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("%s: %w\n%s", strings.Join(args, " "), err, bytes.TrimSpace(said))
		}
	}
	parsed, err := cover.ParseProfiles(profile)
	if err != nil {
		return nil, err
	}
	out := make(map[string]*cover.Profile, len(parsed))
	for _, p := range parsed {
		out[strings.TrimPrefix(p.FileName, module)] = p
	}
	return out, nil
}

type function struct {
	file, name string
	first      token.Position
	last       token.Position
}

func (f *function) lines() int { return f.last.Line - f.first.Line + 1 }

// wasRun reports whether any part of a function ran, according to the profile of its file.
func wasRun(f *function, p *cover.Profile) bool {
	return p != nil && slices.ContainsFunc(p.Blocks, func(b cover.ProfileBlock) bool {
		return b.Count > 0 && b.StartLine >= f.first.Line && b.EndLine <= f.last.Line
	})
}

// source describes the Go code in a directory, without tests.
type source struct {
	files, lines int
	functions    []*function
	// changing contains the methods in callPackages that assign to fields of their receivers.
	changing []*function
}

func readSource(root string) (*source, error) {
	src := new(source)
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && d.Name() == "testdata":
			return fs.SkipDir
		case d.IsDir(), !strings.HasSuffix(name, ".go"), strings.HasSuffix(name, "_test.go"):
			return nil
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		set := token.NewFileSet()
		parsed, err := parser.ParseFile(set, name, text, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		src.files++
		src.lines += bytes.Count(text, []byte("\n"))
		file := filepath.ToSlash(name)
		for _, decl := range parsed.Decls {
			d, ok := decl.(*ast.FuncDecl)
			if !ok || d.Body == nil {
				continue
			}
			f := &function{file: file, name: functionName(d), first: set.Position(d.Pos()), last: set.Position(d.End())}
			src.functions = append(src.functions, f)
			if callPackages[path.Dir(file)] && fieldAssignments(d) {
				src.changing = append(src.changing, f)
			}
		}
		return nil
	})
	return src, err
}

// functionName returns the name of a function, or TYPE.NAME for a method.
func functionName(d *ast.FuncDecl) string {
	if d.Recv == nil {
		return d.Name.Name
	}
	of := d.Recv.List[0].Type
	if pointer, ok := of.(*ast.StarExpr); ok {
		of = pointer.X
	}
	if generic, ok := of.(*ast.IndexExpr); ok {
		of = generic.X
	}
	if named, ok := of.(*ast.Ident); ok {
		return named.Name + "." + d.Name.Name
	}
	return d.Name.Name
}

// fieldAssignments reports whether a method with a pointer receiver assigns to a field of its receiver.
func fieldAssignments(d *ast.FuncDecl) (found bool) {
	if d.Recv == nil || len(d.Recv.List[0].Names) == 0 {
		return false
	}
	if _, ok := d.Recv.List[0].Type.(*ast.StarExpr); !ok {
		return false
	}
	self := d.Recv.List[0].Names[0].Name
	ast.Inspect(d.Body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.AssignStmt:
			found = found || n.Tok != token.DEFINE && slices.ContainsFunc(n.Lhs, func(e ast.Expr) bool { return isReceiver(e, self) })
		case *ast.IncDecStmt:
			found = found || isReceiver(n.X, self)
		}
		return !found
	})
	return found
}

// isReceiver reports whether an expression selects a field of the receiver, or a part of such a field.
func isReceiver(e ast.Expr, self string) bool {
	for {
		switch x := e.(type) {
		case *ast.SelectorExpr:
			if named, ok := x.X.(*ast.Ident); ok && named.Name == self {
				return true
			}
			e = x.X
		case *ast.IndexExpr:
			e = x.X
		case *ast.ParenExpr:
			e = x.X
		default:
			return false
		}
	}
}

// byFile yields the files that contain the functions, sorted by name, each with its functions.
func byFile(functions []*function) func(func(string, []*function) bool) {
	grouped := make(map[string][]*function)
	for _, f := range functions {
		grouped[f.file] = append(grouped[f.file], f)
	}
	return func(yield func(string, []*function) bool) {
		for _, file := range slices.Sorted(maps.Keys(grouped)) {
			slices.SortFunc(grouped[file], func(a, b *function) int { return cmp.Compare(a.first.Line, b.first.Line) })
			if !yield(file, grouped[file]) {
				return
			}
		}
	}
}

func files(functions []*function) int {
	seen := make(map[string]bool)
	for _, f := range functions {
		seen[f.file] = true
	}
	return len(seen)
}

func lines(functions []*function) (n int) {
	for _, f := range functions {
		n += f.lines()
	}
	return n
}

// packages returns the names of the packages that contain the given functions.
func packages(functions []*function) string {
	seen := make(map[string]bool)
	for _, f := range functions {
		seen[path.Base(path.Dir(f.file))] = true
	}
	return strings.Join(slices.Sorted(maps.Keys(seen)), ", ")
}
