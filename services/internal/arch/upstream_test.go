package arch_test

import (
	"go/ast"
	"path"
	"strings"
	"testing"
)

const (
	upstream = "gateway/internal/upstream"
	// forwards is the one file that makes a request of what a client wrote, and replies the one
	// by which a client's words to a server's own request go.
	forwards = "gateway/internal/pipeline/forward.go"
	replies  = "gateway/internal/edge/asked.go"
)

// alone are the names of each package by which something could reach a server, and who may
// say them beside the tests and beside the package itself.
var alone = map[string]map[string][]string{
	module + upstream: {
		"Transport": {"gateway/gateway.go"}, // which says how each server is reached
		"Conn":      nil,
		"Request{":  {forwards},
	},
	"net/http": {
		"Client": nil, "DefaultClient": nil, "Transport": {"gateway/internal/wire/"}, "DefaultTransport": nil,
		"Get": nil, "Head": nil, "Post": nil, "PostForm": nil, "NewRequest": nil, "NewRequestWithContext": nil,
	},
	module + "gateway/internal/wire": {"New": {upstream + "/streamable/"}},
	"net":                            {"Dialer": {"gateway/internal/wire/"}, "Dial": nil, "DialTimeout": nil, "DialTCP": nil, "DialUnix": nil},
	"os/exec":                        {"Command": nil, "CommandContext": nil, "Cmd": nil},
}

// TestThereIsOneWayToAnUpstream: what goes to a server goes through a session of package
// upstream, and what a client wrote through the pipeline.
func TestThereIsOneWayToAnUpstream(t *testing.T) {
	t.Parallel()
	eachImport(t, func(file, imp string) {
		if strings.HasPrefix(imp, module+upstream+"/") && path.Dir(file) != "gateway" && !strings.HasPrefix(file, upstream+"/") && !isTest(file) {
			t.Errorf("%s must not import %s: only the gateway says how its servers are reached", file, imp)
		}
	})
	said := make(map[string]bool)
	eachFile(t, 0, func(file string, parsed *ast.File) {
		if first(file) != "gateway" || isTest(file) {
			return
		}
		names := namesOf(parsed)
		ast.Inspect(parsed, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CallExpr:
				if called, ok := n.Fun.(*ast.SelectorExpr); ok && called.Sel.Name == "Forward" {
					if said[file] = true; file != forwards && file != "gateway/internal/session/calls.go" {
						t.Errorf("%s must not call Forward: what is judged goes through the pipeline", file)
					}
				}
				if called, ok := n.Fun.(*ast.SelectorExpr); ok && called.Sel.Name == "Reply" {
					if said[file] = true; file != replies {
						t.Errorf("%s must not call Reply: the server's request was judged elsewhere", file)
					}
				}
			case *ast.CompositeLit:
				check(t, file, names, n.Type, "{", said)
			case *ast.SelectorExpr:
				check(t, file, names, n, "", said)
			}
			return true
		})
	})
	for _, file := range []string{forwards, replies, "gateway/gateway.go", "gateway/internal/wire/dial.go", upstream + "/streamable/streamable.go"} {
		if !said[file] {
			t.Errorf("%s is no way to a server any more: mend this test", file)
		}
	}
}

// check complains of a name that a file must not say, and notes one that it may.
func check(t *testing.T, file string, names map[string]string, expr ast.Expr, suffix string, said map[string]bool) {
	t.Helper()
	selector, ok := expr.(*ast.SelectorExpr)
	if !ok {
		return
	}
	pkg, ok := selector.X.(*ast.Ident)
	if !ok {
		return
	}
	imp := names[pkg.Name]
	may, limited := alone[imp][selector.Sel.Name+suffix]
	if !limited || strings.HasPrefix(file, upstream+"/") && imp == module+upstream {
		return
	}
	for _, place := range may {
		if strings.HasPrefix(file, place) {
			said[file] = true
			return
		}
	}
	t.Errorf("%s must not say %s.%s%s: it is a way to a server past the one", file, pkg.Name, selector.Sel.Name, suffix)
}

// namesOf returns the imports of a file by their names.
func namesOf(parsed *ast.File) map[string]string {
	out := make(map[string]string)
	for _, spec := range parsed.Imports {
		imp := strings.Trim(spec.Path.Value, `"`)
		name := path.Base(imp)
		if spec.Name != nil {
			name = spec.Name.Name
		}
		out[name] = imp
	}
	return out
}
