package hookevent

import "strings"

// isToolOf reports whether the name of the tool begins with the name of a server as the client writes it. Codex also
// replaces hyphens, which earlier versions kept.
func (e Event) isToolOf(server string) bool {
	name := normalized(server)
	if strings.HasPrefix(e.Tool, toolPrefix+name+"__") {
		return true
	}
	return e.Client == "codex" && strings.HasPrefix(e.Tool, toolPrefix+strings.ReplaceAll(name, "-", "_")+"__")
}
