package arch_test

import (
	"go/ast"
	"go/parser"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"

	"github.com/sluice-mesh/sluice/services/internal/telemetry/telemetrytest"
)

// TestTelemetry_AttributesAreDocumented checks that only files called telemetry.go name an attribute of the project,
// and that docs/telemetry.md lists exactly these attributes.
func TestTelemetry_AttributesAreDocumented(t *testing.T) {
	t.Parallel()
	documented := make(map[string]bool)
	for _, heading := range []string{"Attributes of the gateway's spans", "Attributes of votes", "Attributes of a process", "Attributes of metrics"} {
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
			t.Errorf("%s names the attribute %q: move the name to a file telemetry.go", file, name)
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

// attributeName returns the attribute's name if the expression call is a call to package attribute with a literal name.
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

// instruments matches the names of the OpenTelemetry methods that create an instrument.
var instruments = regexp.MustCompile(`^(Int64|Float64)(Observable)?(Counter|UpDownCounter|Gauge|Histogram)$`)

// TestTelemetry_InstrumentsAreMadeInOnePlace checks that only files called telemetry.go create instruments, and that
// each instrument has a name, a unit and a description.
func TestTelemetry_InstrumentsAreMadeInOnePlace(t *testing.T) {
	t.Parallel()
	eachCall(t, func(file string, call *ast.CallExpr) {
		of, ok := call.Fun.(*ast.SelectorExpr)
		if !ok || !instruments.MatchString(of.Sel.Name) {
			return
		}
		if filepath.Base(file) != "telemetry.go" {
			t.Errorf("%s makes an instrument: move it to a file telemetry.go", file)
		}
		options := make(map[string]bool)
		for _, arg := range call.Args {
			if option, ok := arg.(*ast.CallExpr); ok {
				if of, ok := option.Fun.(*ast.SelectorExpr); ok {
					options[of.Sel.Name] = true
				}
			}
		}
		if !options["WithUnit"] || !options["WithDescription"] {
			t.Errorf("%s makes an instrument without a unit or a description", file)
		}
	})
}

// eachCall calls f for every call in every Go file, except in tests.
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
