package classify

import "testing"

// TestForms_EachExpressionCompiles compiles all expressions. In other tests and in production, an expression is
// compiled only when it is first tried on a text.
func TestForms_EachExpressionCompiles(t *testing.T) {
	t.Parallel()
	for _, f := range forms {
		if f.words() == nil {
			t.Errorf("the form of %q has no expression", f.triggers)
		}
	}
	runnable()
}
