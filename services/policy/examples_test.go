package policy_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"encoding/json"

	"go.yaml.in/yaml/v4"

	"github.com/sluice-mesh/sluice/services/internal/config"
	"github.com/sluice-mesh/sluice/services/policy"
)

// checkDocumentsLoad checks that the documents at the given paths load without findings. The parameter least is the
// minimum number of documents.
func checkDocumentsLoad(t *testing.T, least int, paths ...string) {
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

func TestExamples_Load(t *testing.T) {
	t.Parallel()
	checkDocumentsLoad(t, 3, "../../examples/policies", "../sluice/internal/cli/starter.yaml")
}

func TestExamples_ClaudeFlowLoads(t *testing.T) {
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
		checkDocumentsLoad(t, 1, file.Path(p))
	}
	for _, folder := range []string{"limited", "approved"} {
		checkDocumentsLoad(t, 1, filepath.Join(dir, folder))
	}
}

func TestExamples_ComposeConfigurationLoads(t *testing.T) {
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

// The example policies for real servers load. Each of them has an entry for every tool in the server's list, and
// requires approval for each tool that is labelled destructive or financial.
func TestExamples_PoliciesForRealServersLoad(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../../examples/policies/servers/*.yaml")
	if err != nil || len(files) < 20 {
		t.Fatalf("%d policies, %v", len(files), err)
	}
	const lists = "internal/classify/testdata"
	severe := severeTools(t, filepath.Join(lists, "labels", "labels.jsonl"))
	for _, file := range files {
		checkDocumentsLoad(t, 1, file)
		server := strings.TrimSuffix(filepath.Base(file), ".yaml")
		list, err := os.ReadFile(filepath.Join(lists, "lists", server+".json"))
		if err != nil {
			t.Fatal(err)
		}
		tools, err := policy.ClassifyList(list, false)
		if err != nil {
			t.Fatal(err)
		}
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var document struct {
			Server, Default string
			Tools           map[string]struct{ Action string }
		}
		if err := yaml.Unmarshal(raw, &document); err != nil {
			t.Fatal(err)
		}
		if document.Server != server || document.Default != "deny" || len(document.Tools) != len(tools) {
			t.Errorf("%s is about %q, has the default %q and %d tools of %d", file, document.Server, document.Default, len(document.Tools), len(tools))
		}
		for _, tool := range tools {
			rule, named := document.Tools[tool.Name]
			if !named || severe[server+" "+tool.Name] && rule.Action != "require_approval" {
				t.Errorf("%s: %s is %q, named: %t", file, tool.Name, rule.Action, named)
			}
		}
	}
}

func severeTools(t *testing.T, labels string) map[string]bool {
	t.Helper()
	raw, err := os.ReadFile(labels)
	if err != nil {
		t.Fatal(err)
	}
	out := make(map[string]bool)
	for line := range strings.Lines(string(raw)) {
		var l struct{ Server, Name, Category string }
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			t.Fatal(err)
		}
		if l.Category == "Destructive" || l.Category == "Financial" {
			out[l.Server+" "+l.Name] = true
		}
	}
	if len(out) < 50 {
		t.Fatalf("%d tools are severe", len(out))
	}
	return out
}
