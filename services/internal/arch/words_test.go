package arch_test

import (
	"go/ast"
	"strings"
	"testing"
)

// TestOneWordForEachNo: the gateway rejects what does not parse and who is nobody, before
// policy, and its edge alone does. Policy, and people, deny. All else, and the sum, is
// refused. Other words for no are none of functions and types.
func TestOneWordForEachNo(t *testing.T) {
	t.Parallel()
	said := 0
	eachFile(t, 0, func(file string, parsed *ast.File) {
		if first(file) != "gateway" || isTest(file) {
			return
		}
		for _, name := range declared(parsed) {
			lower := strings.ToLower(name)
			for _, other := range []string{"turnaway", "turnback", "turndown", "forbid", "prohibit", "decline", "veto"} {
				if strings.Contains(lower, other) && lower != "declined" { // which whoever sits at an agent does
					t.Errorf("%s: %s: say reject, deny or refuse", file, name)
				}
			}
			if strings.Contains(lower, "reject") {
				if said++; !strings.HasPrefix(file, "gateway/internal/edge/") {
					t.Errorf("%s: %s: what is behind the edge denies or refuses", file, name)
				}
			}
		}
	})
	if said == 0 {
		t.Error("nothing is rejected: the test looks in the wrong place")
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
