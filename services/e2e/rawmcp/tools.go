package rawmcp

import (
	"fmt"
	"strings"
)

// Tools is the list of tools that most servers in tests have. Test policies have rules for these tools.
var Tools = ToolList("safe", "danger", "limited", "pay", "sync", "send", "note", "post", "refund", "secret", "large")

// ToolList returns a JSON array of tools with these names.
func ToolList(names ...string) string {
	list := make([]string, len(names))
	for i, name := range names {
		list[i] = fmt.Sprintf(`{"name":%q,"inputSchema":{"type":"object"}}`, name)
	}
	return "[" + strings.Join(list, ",") + "]"
}
