package arch_test

import (
	"go/ast"
	"strings"
	"testing"
)

// TestNames_TheGatewayRefusesAndPolicyDenies checks the names of functions, methods and types of the gateway: policy
// and people deny, and everything else refuses. No other word says no.
func TestNames_TheGatewayRefusesAndPolicyDenies(t *testing.T) {
	t.Parallel()
	refuses := 0
	eachFile(t, 0, func(file string, parsed *ast.File) {
		if first(file) != "gateway" || isTest(file) {
			return
		}
		for _, name := range declared(parsed) {
			lower := strings.ToLower(name)
			for _, other := range []string{"reject", "turnaway", "turnback", "turndown", "forbid", "prohibit", "decline", "veto"} {
				if strings.Contains(lower, other) && lower != "declined" { // which whoever sits at an agent does
					t.Errorf("%s: %s: say deny or refuse", file, name)
				}
			}
			if strings.Contains(lower, "refus") {
				refuses++
			}
		}
	})
	if refuses == 0 {
		t.Error("nothing is refused: the test looks in the wrong place")
	}
}

// declared are the names of the functions, methods and types of a file.
func declared(parsed *ast.File) (names []string) {
	for _, decl := range parsed.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			names = append(names, d.Name.Name)
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				if typed, ok := spec.(*ast.TypeSpec); ok {
					names = append(names, typed.Name.Name)
				}
			}
		}
	}
	return names
}
