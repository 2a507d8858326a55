package clientconfig_test

import (
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/sluice/internal/clientconfig"
)

func TestCallTimeout_IsThatOfTheEntryOrOfTheClient(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		client, file string
		want         time.Duration
		member       string
	}{
		{"claude-code", `{"mcpServers": {"a": {"command": "x", "timeout": 30000}}}`, 30 * time.Second, "timeout = 60000"},
		{"claude-code", `{"mcpServers": {"a": {"command": "x"}}}`, 100_000 * time.Second, "timeout = 60000"},
		{"claude-code", `{"mcpServers": {"a": {"command": "x", "timeout": "soon"}}}`, 100_000 * time.Second, "timeout = 60000"},
		{"claude-code", `{"mcpServers": {"a": {"command": "x", "timeout": 1e300}}}`, 100_000 * time.Second, "timeout = 60000"},
		{"claude-code", `{"mcpServers": {"a": {"command": "x", "timeout": -5}}}`, 100_000 * time.Second, "timeout = 60000"},
		{"codex", "[mcp_servers.a]\ncommand = \"x\"\ntool_timeout_sec = 20.5\n", 20500 * time.Millisecond, "tool_timeout_sec = 60"},
		{"codex", "[mcp_servers.a]\ncommand = \"x\"\n", time.Minute, "tool_timeout_sec = 60"},
		{"goose", "extensions:\n  a: {type: stdio, cmd: x, timeout: 10}\n", 10 * time.Second, "timeout = 60"},
		{"gemini", `{"mcpServers": {"a": {"command": "x", "timeout": 5000}}}`, 5 * time.Second, "timeout = 60000"},
		{"claude-desktop", `{"mcpServers": {"a": {"command": "x", "timeout": 5}}}`, time.Minute, ""},
		{"cursor", `{"mcpServers": {"a": {"command": "x"}}}`, 0, ""},
	} {
		c, _ := clientconfig.Find(tt.client)
		if got := c.CallTimeout(entries(t, tt.client, tt.file)[0]); got != tt.want {
			t.Errorf("%s: the time-out is %v, want %v: %s", tt.client, got, tt.want, tt.file)
		}
		if got := c.TimeoutMember(time.Minute); got != tt.member {
			t.Errorf("%s: the member is %q, want %q", tt.client, got, tt.member)
		}
	}
}
