package arch_test

import (
	"go/ast"
	"go/parser"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/internal/telemetry/telemetrytest"
)

// Every attribute of ours is named in a file telemetry.go and nowhere else, and
// docs/telemetry.md lists exactly these.
func TestAttributesAreDocumented(t *testing.T) {
	t.Parallel()
	documented := make(map[string]bool)
	for _, heading := range []string{"Attributes of the gateway's spans", "Attributes of a process"} {
		for _, row := range telemetrytest.Documented(t, "../../../docs/telemetry.md", heading) {
			documented[row[0]] = true
		}
	}
	emitted := make(map[string]bool)
	eachCall(t, func(file string, call *ast.CallExpr) {
		name, ok := attributeName(call)
		if !ok {
			return
		}
		emitted[name] = true
		if filepath.Base(file) != "telemetry.go" {
			t.Errorf("%s names the attribute %q: that is for a file telemetry.go", file, name)
		}
		if !documented[name] {
			t.Errorf("%s: docs/telemetry.md does not list the attribute %q", file, name)
		}
	})
	for name := range documented {
		if !emitted[name] {
			t.Errorf("docs/telemetry.md lists the attribute %q, which nothing emits", name)
		}
	}
}

// attributeName returns the name that a call of package attribute gives as text.
func attributeName(call *ast.CallExpr) (string, bool) {
	of, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || len(call.Args) == 0 {
		return "", false
	}
	pkg, ok := of.X.(*ast.Ident)
	text, isText := call.Args[0].(*ast.BasicLit)
	if !ok || pkg.Name != "attribute" || !isText {
		return "", false
	}
	name, err := strconv.Unquote(text.Value)
	return name, err == nil
}

// No metrics are made: docs/telemetry.md lists none, and so must list those of the
// change that brings the first.
func TestNoMetricsAreMade(t *testing.T) {
	t.Parallel()
	eachImport(t, func(file, imp string) {
		if strings.HasPrefix(imp, "go.opentelemetry.io/otel") && strings.Contains(imp, "metric") && imp != "go.opentelemetry.io/otel/metric/noop" {
			t.Errorf("%s imports %s: list what it makes in docs/telemetry.md, and compare it there", file, imp)
		}
	})
}

// eachCall calls f for every call in every Go file but tests.
func eachCall(t *testing.T, f func(file string, call *ast.CallExpr)) {
	t.Helper()
	eachFile(t, parser.SkipObjectResolution, func(file string, parsed *ast.File) {
		if isTest(file) {
			return
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok {
				f(file, call)
			}
			return true
		})
	})
}
