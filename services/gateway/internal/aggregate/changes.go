package aggregate

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
)

// ServerLists describes everything that determines a caller's view of one server's lists.
type ServerLists struct {
	Server string
	// Changes is the number of times that the server's tool list has changed, or 0 if the server is not known yet.
	Changes int
	// Methods contains the methods, such as notifications/tools/list_changed, that the policy does not deny to the
	// caller on this server.
	Methods []string
	// PromptNamesIgnored is true if the policy does not distinguish prompts by name. ResourceNamesIgnored is true if
	// the policy does not distinguish resources by name.
	PromptNamesIgnored, ResourceNamesIgnored bool
	// Revision is the current policy revision.
	Revision string
}

// State returns a string that encodes the state of all servers' lists. Different states have different strings. The
// string has a line for tools, a line for prompts and a line for resources. Each line begins with the number of known
// servers.
//
// The line for tools also contains the number of changes to each server's list, and the policy revision. The gateway
// itself does not list prompts and resources, so the lines for these contain the policy revision only if the policy
// distinguishes them by name. If the caller must not be notified of changes to one of a server's lists, the line for
// that list does not contain the server.
func State(servers []ServerLists) string {
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
		if notifies(1, mcp.MethodPromptsChanged) && !s.PromptNamesIgnored {
			prompts = fmt.Appendf(prompts, " %s:%s", s.Server, s.Revision)
		}
		if notifies(2, mcp.MethodResourcesChanged) && !s.ResourceNamesIgnored {
			resources = fmt.Appendf(resources, " %s:%s", s.Server, s.Revision)
		}
	}
	return fmt.Sprintf("%d%s\n%d%s\n%d%s", known[0], tools, known[1], prompts, known[2], resources)
}

// ChangedLists returns the list_changed notifications to send to a client. The parameter before is the state that the
// client knows, and the parameter now is the current state.
func ChangedLists(before, now string) (notifications []string) {
	was := strings.Split(before, "\n")
	for i, state := range strings.Split(now, "\n") {
		if i >= len(was) || was[i] != state {
			notifications = append(notifications, [...]string{mcp.MethodToolsChanged, mcp.MethodPromptsChanged, mcp.MethodResourcesChanged}[i])
		}
	}
	return notifications
}

// MarkToolsRead returns the state that a client knows after it has read the list of tools. The parameter before is the
// state that the client knew, and the parameter now is the current state. The returned state has the current state's
// line for tools, and the earlier state's other lines.
func MarkToolsRead(before, now string) string {
	tools, _, _ := strings.Cut(now, "\n")
	if _, others, known := strings.Cut(before, "\n"); known && now != "" {
		return tools + "\n" + others
	}
	return now
}
