package arch_test

import (
	"go/ast"
	"path"
	"strings"
	"testing"
)

const (
	upstream = "gateway/internal/upstream"
	// forwards is the only file that builds an upstream request from a client's request. replies is the only file that
	// sends a client's response to a request from the server.
	forwards = "gateway/internal/pipeline/forward.go"
	replies  = "gateway/internal/dispatch/server_requests.go"
)

// reachingNames lists the names in each package that could be used to reach a server. For each name, it lists the files
// that may use the name, as prefixes of their paths. Tests and the package itself may always use the name.
var reachingNames = map[string]map[string][]string{
	module + upstream: {
		"Transport": {"gateway/transports.go"},         // configures the connection to each server
		"Conn":      {"gateway/internal/gatewaytest/"}, // the servers of tests
		"Request{":  {forwards},
	},
	"net/http": {
		"Client": nil, "DefaultClient": nil, "Transport": {"gateway/internal/httpclient/"}, "DefaultTransport": nil,
		"Get": nil, "Head": nil, "Post": nil, "PostForm": nil, "NewRequest": nil, "NewRequestWithContext": nil,
	},
	module + "gateway/internal/httpclient": {"New": {upstream + "/streamable/"}},
	"net":                                  {"Dialer": {"gateway/internal/httpclient/"}, "Dial": nil, "DialTimeout": nil, "DialTCP": nil, "DialUnix": nil},
	"os/exec":                              {"Command": nil, "CommandContext": nil, "Cmd": nil},
}

// TestUpstream_IsReachedOnlyThroughItsPackage checks that all traffic to a server goes through a session of package
// upstream, and that only the pipeline sends a client's request.
func TestUpstream_IsReachedOnlyThroughItsPackage(t *testing.T) {
	t.Parallel()
	eachImport(t, func(file, imp string) {
		if strings.HasPrefix(imp, module+upstream+"/") && path.Dir(file) != "gateway" && !strings.HasPrefix(file, upstream+"/") && !isTest(file) {
			t.Errorf("%s must not import %s: only package gateway configures how servers are reached", file, imp)
		}
	})
	said := make(map[string]bool)
	eachFile(t, 0, func(file string, parsed *ast.File) {
		if firstElement(file) != "gateway" || isTest(file) {
			return
		}
		names := importNames(parsed)
		ast.Inspect(parsed, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CallExpr:
				if called, ok := n.Fun.(*ast.SelectorExpr); ok && called.Sel.Name == "Forward" {
					if said[file] = true; file != forwards && file != "gateway/internal/session/calls.go" {
						t.Errorf("%s must not call Forward: a call that policy decides goes through the pipeline", file)
					}
				}
				if called, ok := n.Fun.(*ast.SelectorExpr); ok && called.Sel.Name == "Reply" {
					if said[file] = true; file != replies {
						t.Errorf("%s must not call Reply: only the file that judged the server's request replies to it", file)
					}
				}
			case *ast.CompositeLit:
				checkSelector(t, file, names, n.Type, "{", said)
			case *ast.SelectorExpr:
				checkSelector(t, file, names, n, "", said)
			}
			return true
		})
	})
	for _, file := range []string{forwards, replies, "gateway/transports.go", "gateway/internal/httpclient/dial.go", upstream + "/streamable/streamable.go"} {
		if !said[file] {
			t.Errorf("%s does not reach a server any more: change this test", file)
		}
	}
}

// checkSelector reports an error if a file may not use the name in expr. If the file may use the name, checkSelector
// adds the file to said.
func checkSelector(t *testing.T, file string, names map[string]string, expr ast.Expr, suffix string, said map[string]bool) {
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
	may, limited := reachingNames[imp][selector.Sel.Name+suffix]
	if !limited || strings.HasPrefix(file, upstream+"/") && imp == module+upstream {
		return
	}
	for _, place := range may {
		if strings.HasPrefix(file, place) {
			said[file] = true
			return
		}
	}
	t.Errorf("%s must not use %s.%s%s: it reaches a server without package upstream", file, pkg.Name, selector.Sel.Name, suffix)
}

// importNames returns the import paths of a file. The keys are the names that the file uses for the imported packages.
func importNames(parsed *ast.File) map[string]string {
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
