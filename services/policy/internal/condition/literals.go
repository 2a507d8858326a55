package condition

import "cel.dev/cel-go/common/ast"

// Literals returns the distinct string literals in the condition, in the order in which they occur.
func (c *Condition) Literals() []string {
	if c.ast == nil {
		return nil
	}
	var out []string
	seen := make(map[string]bool)
	ast.PreOrderVisit(c.ast.NativeRep().Expr(), ast.NewExprVisitor(func(e ast.Expr) {
		if text, ok := stringLiteral(e); ok && !seen[text] {
			seen[text], out = true, append(out, text)
		}
	}))
	return out
}
