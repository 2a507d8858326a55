package arch_test

import (
	"go/ast"
	"strings"
	"testing"
)

// TestNames_TheGatewayRefusesAndPolicyDenies checks the names of functions, methods and types in the gateway. Only the
// policy and approvers "deny", and every other component "refuses". Synonyms of the two words are errors.
func TestNames_TheGatewayRefusesAndPolicyDenies(t *testing.T) {
	t.Parallel()
	refuses := 0
	eachFile(t, 0, func(file string, parsed *ast.File) {
		if firstElement(file) != "gateway" || isTest(file) {
			return
		}
		for _, name := range declaredNames(parsed) {
			lower := strings.ToLower(name)
			for _, other := range []string{"reject", "turnaway", "turnback", "turndown", "forbid", "prohibit", "decline", "veto"} {
				if strings.Contains(lower, other) && lower != "declined" { // the result of an elicitation that the user declines
					t.Errorf("%s: %s: say deny or refuse", file, name)
				}
			}
			if strings.Contains(lower, "refus") {
				refuses++
			}
		}
	})
	if refuses == 0 {
		t.Error("no name contains `refuse`: the test reads the wrong folder")
	}
}

func declaredNames(parsed *ast.File) (names []string) {
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
