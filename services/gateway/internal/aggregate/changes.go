package aggregate

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
)

// Lists is what determines which lists of a server a caller sees.
type Lists struct {
	Server string
	// Changes is how often the server's list of tools has changed; 0 if the server is not known yet.
	Changes int
	// Methods are those that policy does not deny to the caller.
	Methods []string
	// PromptsAlike and ResourcesAlike report whether policy does not distinguish prompts, or resources, by their names.
	PromptsAlike, ResourcesAlike bool
	// Revision is the revision of the policy.
	Revision string
}

// State returns the state of the lists of all servers, as a text that differs for different states. It has a line for
// tools, one for prompts and one for resources. Each line begins with the number of known servers. The line for tools
// also contains how often the list of each server has changed, and the policy's revision. The gateway does not list
// prompts and resources itself, so the other lines contain the revision if policy distinguishes them by name. A
// server of whose list the caller must not be notified is not in the line of that list.
func State(servers []Lists) string {
	var tools, prompts, resources []byte
	var known [3]int // in the order of the lines
	for _, s := range servers {
		notifies := func(line int, method string) bool {
			allowed := slices.Contains(s.Methods, method)
			if allowed {
				known[line] += min(s.Changes, 1)
			}
			return allowed
		}
		if notifies(0, mcp.MethodToolsChanged) {
			tools = fmt.Appendf(tools, " %s:%d:%s", s.Server, s.Changes, s.Revision)
		}
		if notifies(1, mcp.MethodPromptsChanged) && !s.PromptsAlike {
			prompts = fmt.Appendf(prompts, " %s:%s", s.Server, s.Revision)
		}
		if notifies(2, mcp.MethodResourcesChanged) && !s.ResourcesAlike {
			resources = fmt.Appendf(resources, " %s:%s", s.Server, s.Revision)
		}
	}
	return fmt.Sprintf("%d%s\n%d%s\n%d%s", known[0], tools, known[1], prompts, known[2], resources)
}

// Changed returns the notifications for a client that knows one state of the lists, when another replaces it.
func Changed(before, now string) (notifications []string) {
	was := strings.Split(before, "\n")
	for i, state := range strings.Split(now, "\n") {
		if i >= len(was) || was[i] != state {
			notifications = append(notifications, [...]string{mcp.MethodToolsChanged, mcp.MethodPromptsChanged, mcp.MethodResourcesChanged}[i])
		}
	}
	return notifications
}

// WithTools returns the state that a client knows after it has read the list of tools: of the other lists it knows
// what it knew before.
func WithTools(before, now string) string {
	tools, _, _ := strings.Cut(now, "\n")
	if _, others, known := strings.Cut(before, "\n"); known && now != "" {
		return tools + "\n" + others
	}
	return now
}
