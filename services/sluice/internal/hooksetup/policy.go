package hooksetup

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/go-json-experiment/json"

	"github.com/sluice-mesh/sluice/services/internal/hosttools"
)

const (
	// shellRate and changeRate are the rate limits in the policy, in calls per minute.
	shellRate  = 60
	changeRate = 120
)

// guardReason is the reason that the policy gives if it denies a change to a protected file.
const guardReason = "this file belongs to Sluice, or has the hooks or MCP servers of a client: ask the person to change it"

// secretReason is the reason that the policy gives if it denies reading a file with Sluice's tokens or secrets.
const secretReason = "this file has tokens or secrets of Sluice, with which a program can approve its own calls"

// shellReason is the reason that the policy gives if it requires approval of a command that contains the name sluice.
// The policy does not detect commands that run Sluice without this name.
const shellReason = "the command names sluice, which can approve calls and remove the hook"

// Policy returns the policy document for a client's own tools. The policy denies the calls that [Protected] marks.
func Policy(client string) ([]byte, error) {
	tools, err := hosttools.Tools(client)
	if err != nil {
		return nil, err
	}
	server := hosttools.ServerName(client)
	var out bytes.Buffer
	fmt.Fprintf(&out, `# The tools that %s has itself. sluice hook install wrote this file; you can edit it. What is allowed here still
# has to pass the rules of the client, which may ask you. Write action: require_approval to decide here instead.
version: 1
name: %s
server: %s
default: deny
tools:
`, hosttools.Name(client), server, server)
	for _, tool := range tools {
		entry, err := entryOf(tool)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&out, "  %s:%s\n", tool.Name, entry)
	}
	return out.Bytes(), nil
}

// entryOf returns the entry for a tool in the policy document.
func entryOf(tool hosttools.Tool) (string, error) {
	var d struct {
		Schema struct {
			Properties map[string]any `json:"properties"`
		} `json:"inputSchema"`
		Annotations struct {
			ReadOnly    bool `json:"readOnlyHint"`
			Destructive bool `json:"destructiveHint"`
			OpenWorld   bool `json:"openWorldHint"`
		} `json:"annotations"`
	}
	if err := json.Unmarshal(tool.Definition, &d); err != nil {
		return "", fmt.Errorf("read the definition of %s: %w", tool.Name, err)
	}
	switch a := d.Annotations; {
	case tool.Name == hosttools.Other: // first, because it has the annotations of a shell
		return " {action: require_approval, reason: this version of Sluice does not know the tool}", nil
	case hosttools.ReadsServers(tool.Name):
		return " {action: require_approval, reason: the tool can reach MCP servers that are not behind the mesh}", nil
	case hosttools.ReadsFiles(tool.Name):
		return conditional(unmarked, 0, "deny", secretReason), nil
	case a.ReadOnly:
		return " {action: allow}", nil
	case a.OpenWorld && d.Schema.Properties["command"] != nil:
		return conditional(`!args.command.contains("sluice")`, shellRate, "require_approval", shellReason), nil
	case a.OpenWorld:
		return limited(shellRate), nil
	case hosttools.WritesFiles(tool.Name):
		return conditional(unmarked, changeRate, "deny", guardReason), nil
	}
	return limited(changeRate), nil
}

// unmarked is a condition that is true for calls that [Protected.Mark] has not marked.
const unmarked = "!has(args." + hosttools.ProtectedFile + ")"

// conditional returns an entry that allows calls for which the condition is true, and applies the action to other
// calls. If rate is 0, the allowed calls are not limited.
func conditional(condition string, rate int, action, reason string) string {
	limit := ""
	if rate > 0 {
		limit = fmt.Sprintf("\n    rate_limit: {max: %d, window: 60}", rate)
	}
	return fmt.Sprintf("\n    action: allow\n    when: '%s'%s\n    otherwise: {action: %s, reason: %q}",
		strings.ReplaceAll(condition, "'", "''"), limit, action, reason)
}

func limited(rate int) string {
	return fmt.Sprintf(" {action: allow, rate_limit: {max: %d, window: 60}}", rate)
}
