package gateway

import (
	"testing"

	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
	"github.com/sluice-mesh/sluice/services/internal/journal"
	"github.com/sluice-mesh/sluice/services/internal/mcpmethod"
)

// The filter removes protocol messages that were allowed or that no rule allows. It keeps messages that were refused
// for another reason, and messages with side effects.
func TestFilter_LeavesOutProtocolMessages(t *testing.T) {
	t.Parallel()
	acts := map[string]bool{
		"tools/call": true, "prompts/get": true, "resources/read": true, "resources/subscribe": true, "resources/unsubscribe": true,
		"completion/complete": true, "tasks/get": true, "tasks/result": true, "tasks/cancel": true, "tasks/update": true,
		"sampling/createMessage": true, "elicitation/create": true,
	}
	for _, method := range append(mcpmethod.All(), "", "unknown/method", "list", "Tools/List") {
		acts := acts[method] || method == "" || method == "unknown/method" || method == "list" || method == "Tools/List"
		for code, selected := range map[string]bool{"": acts, "method_denied": acts, "too_many_sessions": true, "unauthenticated": true, "tool_changed": true} {
			r := &journal.Record{Method: method, Code: code}
			if got := matchesFilter(r, &gatewayv1.DecisionFilter{WithoutProtocol: true}); got != selected {
				t.Errorf("%q with %q is picked: %v", method, code, got)
			}
			if !matchesFilter(r, new(gatewayv1.DecisionFilter)) {
				t.Errorf("%q with %q is left out without the filter", method, code)
			}
		}
	}
}
