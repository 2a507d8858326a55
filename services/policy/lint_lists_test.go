package policy_test

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/enum"
	"github.com/sluice-mesh/sluice/services/internal/rpc/rpctest"
	"github.com/sluice-mesh/sluice/services/policy"
	"github.com/sluice-mesh/sluice/services/policy/internal/catalog"
	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
)

var updateLint = flag.Bool("update-lint", false, "rewrite the findings in testdata/lint")

// TestLintLists_Stories runs each archive in testdata/lint. Each .yaml file is a policy document. The file lists.json
// contains the tools that each server lists, in the form of a response to tools/list, or null for a server that was not
// listed. The file findings contains the expected findings.
func TestLintLists_Stories(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/lint/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("stories: %v, %v", files, err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			t.Parallel()
			runLintStory(t, file)
		})
	}
}

func runLintStory(t *testing.T, file string) {
	t.Helper()
	archive, err := txtar.ParseFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var documents []*policyv1.Document
	var lists policy.ToolLists
	var want *txtar.File
	for i := range archive.Files {
		switch f := &archive.Files[i]; f.Name {
		case "lists.json":
			lists = storyLists(t, f.Data)
		case "findings":
			want = f
		default:
			documents = append(documents, &policyv1.Document{Path: f.Name, Text: string(f.Data)})
		}
	}
	for _, f := range policy.Lint(documents) {
		if f.GetSeverity() == policyv1.Severity_SEVERITY_ERROR {
			t.Fatalf("the documents do not load: %v", f)
		}
	}
	got := ""
	for _, f := range policy.LintLists(documents, lists) {
		got += fmt.Sprintf("%s:%d:%d: %s %s: %s; %s\n", f.GetPath(), f.GetLine(), f.GetColumn(), enum.Name(f.GetSeverity()), f.GetCheck(), f.GetMessage(), f.GetSuggestion())
	}
	if *updateLint {
		want.Data = []byte(got)
		if err := os.WriteFile(file, txtar.Format(archive), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(string(want.Data), got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// storyLists reads the tool lists in the file lists.json. It classifies the tools by their definitions.
func storyLists(t *testing.T, text []byte) policy.ToolLists {
	t.Helper()
	var in map[string][]jsontext.Value
	if err := json.Unmarshal(text, &in); err != nil {
		t.Fatal(err)
	}
	out := policy.ToolLists{Tools: make(map[string][]policy.ListedTool)}
	schemas := make(map[string]string)
	for server, definitions := range in {
		if out.Tools[server] = nil; definitions == nil {
			continue
		}
		list, err := json.Marshal(definitions)
		if err != nil {
			t.Fatal(err)
		}
		tools, err := policy.ClassifyList(list, false)
		if err != nil {
			t.Fatal(err)
		}
		out.Tools[server] = []policy.ListedTool{}
		for i, tool := range tools {
			out.Tools[server] = append(out.Tools[server], policy.ListedTool{
				Name: tool.Name, Category: enum.NameOrEmpty(tool.GetCategory()), Risk: enum.NameOrEmpty(tool.GetRisk()), Tags: tool.GetTags(),
			})
			schemas[server+"/"+tool.Name] = string(definitions[i])
		}
	}
	out.Schema = func(server, tool string) engine.Schema { return catalog.SchemaOf(schemas[server+"/"+tool]) }
	out.Unusable = func(server, tool string) string { return catalog.UnusableSchema(schemas[server+"/"+tool]) }
	return out
}

const misfitting = `version: 1
name: files
server: files
tools:
  raed: {action: allow}
  read: {action: allow, when: args.force == true}
`

// misfitFixture returns a service with the document misfitting, and a server whose tool list does not fit this
// document.
func misfitFixture(t *testing.T, log io.Writer) (*policy.Service, *catalogFixture) {
	t.Helper()
	svc, tokens := build(t, options{
		paths: []string{folder(t, misfitting)}, tokens: append(records(), otherTenantTokens()...), log: log,
		servers: map[string]catalog.Settings{"files": {Mode: catalog.FirstUse}},
	})
	s := rpctest.Serve(t, authv1.Role_ROLE_POLICY, svc, rpctest.Options{Tokens: tokens})
	l := &catalogFixture{t: t, Server: s, gateway: policyv1.NewCatalogServiceClient(s.Gateway())}
	l.reportOwnList(&policyv1.ToolDefinition{Name: "read", DefinitionJson: `{"name":"read","inputSchema":{"type":"object","properties":{"force":{"type":"boolean"}}}}`})
	return svc, l
}

// TestLintDocuments_ComparesDocumentsWithTheCatalog checks the findings that depend on the tool lists. It also checks
// that people of other tenants do not learn the names of tools.
func TestLintDocuments_ComparesDocumentsWithTheCatalog(t *testing.T) {
	t.Parallel()
	_, l := misfitFixture(t, nil)
	for person, want := range map[string]string{"viewer": "5 names warning, 6 optional-arguments error", "acme-operator": ""} {
		resp, err := policyv1.NewPolicyServiceClient(l.Person(t, person)).LintDocuments(t.Context(), &policyv1.LintDocumentsRequest{
			Documents: []*policyv1.Document{{Path: "p.yaml", Text: misfitting}},
		})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, f := range resp.GetFindings() {
			got = append(got, fmt.Sprintf("%d %s %s", f.GetLine(), f.GetCheck(), enum.Name(f.GetSeverity())))
		}
		if strings.Join(got, ", ") != want {
			t.Errorf("%s gets %v", person, resp.GetFindings())
		}
	}
}

func TestRun_LogsWhatDoesNotFitTheLists(t *testing.T) {
	t.Parallel()
	logged, log := io.Pipe()
	lines := make(chan string, 100)
	go func() {
		for in := bufio.NewScanner(logged); in.Scan(); {
			lines <- in.Text()
		}
	}()
	svc, _ := misfitFixture(t, log)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- svc.Run(ctx) }()
	for _, want := range []string{`no tool called \"raed\" was listed by files`, "reads args.force, which not every call of files/read has"} {
		for line := ""; !strings.Contains(line, want); {
			select {
			case line = <-lines:
			case <-time.After(10 * time.Second):
				t.Fatalf("the log does not contain %s", want)
			}
		}
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
