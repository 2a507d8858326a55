package hookevent

import "strings"

// isToolOf reports whether the tool's name begins with the server's name as the client writes it. Codex also replaces
// hyphens, which earlier versions of Codex did not.
func (e Event) isToolOf(server string) bool {
	name := normalized(server)
	if strings.HasPrefix(e.Tool, toolPrefix+name+"__") {
		return true
	}
	return e.Client == "codex" && strings.HasPrefix(e.Tool, toolPrefix+strings.ReplaceAll(name, "-", "_")+"__")
}
