package policy_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/policy"
)

func TestLintLists_ReportsUnknownNames(t *testing.T) {
	t.Parallel()
	known := policy.ToolLists{Tools: map[string][]policy.ListedTool{
		"files": {{Name: "read_file"}, {Name: "write_file"}, {Name: "odd__name"}}, "git-hub": {{Name: "create_issue"}}, "new": nil,
	}}
	tests := []struct {
		name, document string
		want           []string
	}{
		{"all names are known", "server: files\ntools:\n  read_file: {action: allow}\n  odd__name: {action: allow}", nil},
		{"a document for a misspelt server", "server: flies\ntools:\n  nothing_of_it: {action: allow}", []string{`2: server: no configured server is called "flies"; did you mean "files"?`}},
		{"a pattern that matches no server", "server: pay-*\ndefault: deny", []string{`2: server: no configured server is called "pay-*"; known are: files, git-hub, new`}},
		{"a pattern that matches one server", "server: git-*\ntools:\n  create_issue: {action: allow}", nil},
		{"a misspelt tool", "server: files\ntools:\n  raed_file: {action: deny}", []string{`4: tools.raed_file: no tool called "raed_file" was listed by files; did you mean "read_file"?`}},
		{"a joint name in a document for its server", "server: files\ntools:\n  files__read_file: {action: deny}", []string{
			`4: tools.files__read_file: "files__read_file" is a tool's name at /mcp, which begins with the server's name; rules use the name that the server lists, so this matches no call; write the tool as "read_file", for the server "files"`,
		}},
		{"a joint pattern in a document for all", "rules:\n  - {name: r, match: {tool: [\"git-hub__*\"]}, action: deny}", []string{
			`3: rules[0].match.tool[0]: "git-hub__*" is a tool's name at /mcp`,
		}},
		{"a joint name of a server of which no tool is known", "server: new\ntools:\n  new__x: {action: deny}", []string{`4: tools.new__x: "new__x" is a tool's name at /mcp`}},
		{"a tool of a server that was never listed", "server: new\ntools:\n  anything: {action: allow}", nil},
		{"a tool that one of several servers may have", "rules:\n  - {name: r, match: {tool: anything}, action: deny}", nil},
		{"a tool that none of the servers has", "rules:\n  - {name: r, match: {tool: [read_file, delete_*], server: [files, git-hub]}, action: deny}", []string{
			`3: rules[0].match.tool[1]: no tool called "delete_*" was listed by files, git-hub`,
		}},
		{"a server of a rule", "rules:\n  - {name: r, match: {tool: x, server: [fils, new]}, action: deny}", []string{`3: rules[0].match.server[0]: no configured server is called "fils"; did you mean "files"?`}},
		{"a server that the document leaves out", "server: files\nrules:\n  - {name: r, match: {server: new}, action: deny}", []string{`4: rules[0].match.server: the document is only about "files", so the rule matches no call of "new"; move the rule`}},
		{"tools of the mesh itself", "rules:\n  - {name: r, match: {tool: [wasm_model_ask, \"*\"], server: files}, action: deny}", nil},
		{"a document that does not load", "server: nowhere\ndefault: perhaps", nil},
	}
	for _, c := range tests {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			found := policy.LintLists([]*policyv1.Document{{Path: "p.yaml", Text: "version: 1\n" + c.document}}, known)
			var got []string
			for _, f := range found {
				if f.GetCheck() == "not-listed" {
					continue
				}
				text := fmt.Sprintf("%d: %s", f.GetLine(), f.GetMessage())
				if f.GetSuggestion() != "" {
					text += "; " + f.GetSuggestion()
				}
				if f.GetSeverity() != policyv1.Severity_SEVERITY_WARNING {
					t.Errorf("%s is no warning: %v", text, f)
				}
				if i := len(got); i < len(c.want) && strings.HasPrefix(text, c.want[i]) {
					text = c.want[i]
				}
				got = append(got, text)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
