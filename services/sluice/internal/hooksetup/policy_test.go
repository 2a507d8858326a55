package hooksetup_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/internal/hosttools"
	"github.com/sluice-mesh/sluice/services/sluice/internal/hooksetup"
)

// A command that names sluice could approve the agent's own calls. Therefore each tool that executes commands needs an
// approval for such a command. The tool that Codex uses to patch files also has an argument with the name command, but
// it does not execute commands.
func TestPolicy_CommandsThatNameSluiceNeedApproval(t *testing.T) {
	t.Parallel()
	for _, client := range hosttools.Clients() {
		tools, err := hosttools.Tools(client)
		if err != nil {
			t.Fatal(err)
		}
		raw, err := hooksetup.Policy(client)
		if err != nil {
			t.Fatal(err)
		}
		shells := 0
		for _, tool := range tools {
			_, entry, found := strings.Cut(string(raw), "\n  "+tool.Name+":")
			if !found {
				t.Fatalf("%s has no entry for %s:\n%s", client, tool.Name, raw)
			}
			if !bytes.Contains(tool.Definition, []byte(`"command"`)) || tool.Name == "apply_patch" {
				continue
			}
			shells++
			if !strings.HasPrefix(entry, "\n    action: allow\n    when: '!args.command.contains(\"sluice\")'\n") {
				t.Errorf("the entry of %s %s begins with %.120s", client, tool.Name, entry)
			}
		}
		if shells == 0 {
			t.Errorf("%s has no tool that executes a command", client)
		}
	}
}

// A client's own tools for resources of MCP servers can also reach servers that do not go through the mesh. The hook
// itself allows a call that names a server behind the mesh. Therefore the policy needs to evaluate only the other
// calls, and these need approval.
func TestPolicy_ToolsForResourcesNeedApproval(t *testing.T) {
	t.Parallel()
	for client, want := range map[string][]string{
		"claude-code":   {"ListMcpResourcesTool", "ReadMcpResourceTool", "ReadMcpResourceDirTool"},
		hosttools.Codex: {"list_mcp_resources", "list_mcp_resource_templates", "read_mcp_resource"},
		"gemini":        {"list_mcp_resources", "read_mcp_resource"},
	} {
		raw, err := hooksetup.Policy(client)
		if err != nil {
			t.Fatal(err)
		}
		for _, tool := range want {
			if !bytes.Contains(raw, []byte("\n  "+tool+": {action: require_approval,")) {
				t.Errorf("%s %s does not need approval:\n%s", client, tool, raw)
			}
		}
	}
}

// The hook marks reads of tokens and secrets, and the policy denies marked calls to each tool that reads files.
func TestPolicy_ReadsOfSecretsAreDenied(t *testing.T) {
	t.Parallel()
	for client, want := range map[string][]string{
		"claude-code":   {"Read", "Grep", "Glob", "LSP"},
		hosttools.Codex: {"view_image"},
		"gemini":        {"read_file", "read_many_files", "grep_search", "glob", "list_directory"},
	} {
		raw, err := hooksetup.Policy(client)
		if err != nil {
			t.Fatal(err)
		}
		for _, tool := range want {
			if !bytes.Contains(raw, []byte("\n  "+tool+":\n    action: allow\n    when: '!has(args.protected_file)'\n    otherwise: {action: deny,")) {
				t.Errorf("%s %s may read secrets:\n%s", client, tool, raw)
			}
		}
	}
}
