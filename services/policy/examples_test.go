package policy_test

import (
	"testing"

	"github.com/sluice-mesh/sluice/services/policy"
)

// The documents that users start from load, together and as they are.
func TestExamplesLoad(t *testing.T) {
	t.Parallel()
	documents, err := policy.ReadDocuments([]string{"../../examples/policies", "../sluice/internal/cli/starter.yaml"})
	if err != nil {
		t.Fatal(err)
	}
	if len(documents) < 4 {
		t.Fatalf("%d documents were read, want at least 4", len(documents))
	}
	for _, f := range policy.Lint(documents) {
		t.Errorf("%s:%d:%d: %s", f.GetPath(), f.GetLine(), f.GetColumn(), f.GetMessage())
	}
}
