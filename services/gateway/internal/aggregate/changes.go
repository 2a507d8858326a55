package aggregate

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
)

// ServerLists contains everything that determines what a caller sees of one server's lists.
type ServerLists struct {
	Server string
	// Changes counts how often the server's tool list has changed. It is 0 if the gateway does not know the server yet.
	Changes int
	// Methods contains the notification methods, such as notifications/tools/list_changed, that the caller may receive
	// from this server according to the policy.
	Methods []string
	// PromptNamesIgnored is true if the policy treats all prompts alike, whatever their names are. ResourceNamesIgnored
	// is true if the policy treats all resources alike.
	PromptNamesIgnored, ResourceNamesIgnored bool
	// Revision is the current policy revision.
	Revision string
}

// State returns a string that encodes the state of all servers' lists. Two states have the same string only if they are
// equal. The string has a line for tools, a line for prompts and a line for resources. Each line begins with the number
// of known servers.
//
// After that number, the line for tools contains each server's name, the number of changes to the server's list, and
// the policy revision. The gateway itself does not list prompts and resources, so the lines for these name a server,
// with the policy revision, only if the policy distinguishes prompts or resources by name. A line omits each server
// about whose list the caller must not be notified.
func State(servers []ServerLists) string {
	var tools, prompts, resources []byte
	var known [3]int // in the order tools, prompts, resources
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
		if notifies(1, mcp.MethodPromptsChanged) && !s.PromptNamesIgnored {
			prompts = fmt.Appendf(prompts, " %s:%s", s.Server, s.Revision)
		}
		if notifies(2, mcp.MethodResourcesChanged) && !s.ResourceNamesIgnored {
			resources = fmt.Appendf(resources, " %s:%s", s.Server, s.Revision)
		}
	}
	return fmt.Sprintf("%d%s\n%d%s\n%d%s", known[0], tools, known[1], prompts, known[2], resources)
}

// ChangedLists compares the state that a client knows with the current state. It returns the list_changed notifications
// for the lists that differ, which must be sent to the client.
func ChangedLists(known, current string) (notifications []string) {
	was := strings.Split(known, "\n")
	for i, state := range strings.Split(current, "\n") {
		if i >= len(was) || was[i] != state {
			notifications = append(notifications, [...]string{mcp.MethodToolsChanged, mcp.MethodPromptsChanged, mcp.MethodResourcesChanged}[i])
		}
	}
	return notifications
}

// MarkToolsRead returns the state that a client knows after it has read the list of tools. That state consists of the
// current state's line for tools and the previously known state's lines for prompts and resources.
func MarkToolsRead(known, current string) string {
	tools, _, _ := strings.Cut(current, "\n")
	if _, others, ok := strings.Cut(known, "\n"); ok && current != "" {
		return tools + "\n" + others
	}
	return current
}
