package policy_test

import (
	"path/filepath"
	"testing"

	"github.com/sluice-mesh/sluice/services/internal/config"
	"github.com/sluice-mesh/sluice/services/policy"
)

// loadDocuments loads documents, which have to be at least so many, and finds nothing to
// say about them.
func loadDocuments(t *testing.T, least int, paths ...string) {
	t.Helper()
	documents, err := policy.ReadDocuments(paths)
	if err != nil {
		t.Fatal(err)
	}
	if len(documents) < least {
		t.Fatalf("%d documents were read, want at least %d", len(documents), least)
	}
	for _, f := range policy.Lint(documents) {
		t.Errorf("%s:%d:%d: %s", f.GetPath(), f.GetLine(), f.GetColumn(), f.GetMessage())
	}
}

// The documents that users start from load, together and as they are.
func TestExamplesLoad(t *testing.T) {
	t.Parallel()
	loadDocuments(t, 3, "../../examples/policies", "../sluice/internal/cli/starter.yaml")
}

// So does the configuration of an example, and each folder of policies beside it.
func TestClaudeFlowExampleLoads(t *testing.T) {
	t.Parallel()
	const dir = "../../examples/claude-flow/"
	file, err := config.Load(dir+"sluice.yaml", func(string) (string, bool) { return "", false })
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := file.Servers["claude-flow"]; !ok {
		t.Errorf("it has the servers %v", file.Servers)
	}
	for _, p := range file.Policies {
		loadDocuments(t, 1, file.Path(p))
	}
	for _, folder := range []string{"limited", "approved"} {
		loadDocuments(t, 1, filepath.Join(dir, folder))
	}
}

// What compose runs loads too, and its people can give the approvals.
func TestDeployedConfigurationLoads(t *testing.T) {
	t.Parallel()
	file, err := config.Load("../../deploy/config/sluice.yaml", func(string) (string, bool) { return "", false })
	if err != nil {
		t.Fatal(err)
	}
	documents, err := policy.ReadDocuments([]string{file.Path("policies")})
	if err != nil || len(documents) == 0 {
		t.Fatal(documents, err)
	}
	for _, f := range policy.LintFor(file, documents) {
		t.Errorf("%s:%d:%d: %s", f.GetPath(), f.GetLine(), f.GetColumn(), f.GetMessage())
	}
}
