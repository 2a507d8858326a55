package hookevent_test

import (
	"testing"

	"github.com/sluice-mesh/sluice/services/sluice/internal/hookevent"
)

// A client's own tool for resources reaches the server that the arguments name. If the arguments name no server, the
// tool may reach any server. In Gemini CLI, the tool may always reach any server, because Gemini CLI ignores the name.
func TestParse_ResourceToolsBelongToTheServerThatTheyName(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ client, tool, input, server string }{
		{"claude-code", "ReadMcpResourceTool", `{"server":"my notes","uri":"n://1"}`, "my notes"},
		{"claude-code", "ReadMcpResourceDirTool", `{"server":"notes","uri":"n://1"}`, "notes"},
		{"claude-code", "ListMcpResourcesTool", `{"server":"notes"}`, "notes"},
		{"claude-code", "ListMcpResourcesTool", `{}`, ""},
		{"claude-code", "ListMcpResourcesTool", `{"server":""}`, ""},
		{"claude-code", "ReadMcpResourceTool", `{"server":["notes"],"uri":"n://1"}`, ""},
		{"claude-code", "ReadMcpResourceTool", `{"Server":"notes","uri":"n://1"}`, ""},
		{"claude-code", "Read", `{"server":"notes"}`, ""},
		{"codex", "read_mcp_resource", `{"server":"notes","uri":"n://1"}`, "notes"},
		{"codex", "list_mcp_resources", `{"server":"notes"}`, "notes"},
		{"codex", "list_mcp_resource_templates", `{"server":"notes"}`, "notes"},
		{"codex", "list_mcp_resource_templates", `{}`, ""},
		{"gemini", "read_mcp_resource", `{"server":"notes","uri":"n://1"}`, ""},
		{"gemini", "list_mcp_resources", `{"server":"notes","serverName":"notes"}`, ""},
	} {
		e, err := hookevent.Parse(c.client, []byte(`{"hook_event_name":"PreToolUse","tool_name":"`+c.tool+`","tool_input":`+c.input+`}`))
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		if e.MCP != nil {
			got = e.MCP.Name
			if !e.MCP.Resource || !e.Belongs(c.server) || e.Belongs("other") {
				t.Errorf("%s %s %s: the server is %+v", c.client, c.tool, c.input, e.MCP)
			}
		}
		if got != c.server {
			t.Errorf("%s %s %s: the server is %q, want %q", c.client, c.tool, c.input, got, c.server)
		}
	}
}
