package classify

import "testing"

// TestForms_EachExpressionCompiles compiles the expressions that are otherwise compiled when a text needs them.
func TestForms_EachExpressionCompiles(t *testing.T) {
	t.Parallel()
	for _, f := range forms {
		if f.words() == nil {
			t.Errorf("the form of %q has no expression", f.triggers)
		}
	}
	runnable()
}
