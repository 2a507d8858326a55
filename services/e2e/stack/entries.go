package stack

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/e2e/npmtest"
)

// StdioEntry returns a stdio server's configuration entry, for [Options.Servers].
func StdioEntry(t *testing.T, name string, command []string) string {
	t.Helper()
	raw, err := json.Marshal(command) // JSON is also YAML
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("  %s: {stdio: {command: %s}}", name, raw)
}

// ClaudeFlowEntry returns Claude Flow's entry from the configuration in the Claude Flow example, for [Options.Servers].
// It replaces the command with the command that starts the server in this environment.
func ClaudeFlowEntry(t *testing.T) string {
	t.Helper()
	command, err := json.Marshal(npmtest.ClaudeFlow(t)) // JSON is also YAML
	if err != nil {
		t.Fatal(err)
	}
	const theirs = "[node, /opt/claude-flow/node_modules/claude-flow/bin/cli.js, mcp, start]"
	text := ClaudeFlowExample(t, "sluice.yaml")
	_, text, servers := strings.Cut(text, "\nservers:\n")
	text, _, policies := strings.Cut(text, "\npolicies:")
	if !servers || !policies || !strings.Contains(text, theirs) {
		t.Fatalf("the example's servers are %s", text)
	}
	return strings.Replace(text, theirs, string(command), 1)
}

// ClaudeFlowExample returns the content of a file from the Claude Flow example. The test must be in a directory of
// services/e2e.
func ClaudeFlowExample(t *testing.T, name string) string {
	t.Helper()
	return ReadFile(t, filepath.Join("../../../examples/claude-flow", name))
}
