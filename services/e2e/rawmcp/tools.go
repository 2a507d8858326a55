package rawmcp

import (
	"fmt"
	"strings"
)

// Tools is the tool list of most servers in tests. Policies of tests have rules for these names.
var Tools = ToolList("safe", "danger", "limited", "pay", "sync", "send", "note", "post", "refund", "secret", "large")

// ToolList returns a tool list with tools of these names, as a JSON array.
func ToolList(names ...string) string {
	list := make([]string, len(names))
	for i, name := range names {
		list[i] = fmt.Sprintf(`{"name":%q,"inputSchema":{"type":"object"}}`, name)
	}
	return "[" + strings.Join(list, ",") + "]"
}
