package mcp_test

import (
	"slices"
	"testing"

	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/internal/mcpmethod"
)

// A method that is allowed without a rule cannot be used in rules. The two methods that begin a subscription are
// exceptions.
func TestNeedsNoRule_MethodsCannotBeNamedByRules(t *testing.T) {
	t.Parallel()
	for _, method := range mcpmethod.All() {
		unasked := slices.Contains(mcpmethod.WithoutRule(), method)
		if always := mcp.MethodNeedsNoRule(method); always && !unasked || unasked && !always && method != mcp.MethodListen && method != mcp.MethodAcknowledged {
			t.Errorf("%s: passes %t, needs no rule %t", method, always, unasked)
		}
	}
	if n := len(mcp.OfferedMethods()); n > 64 {
		t.Errorf("policy is asked about %d methods at once, and answers about 64", n)
	}
}
