package mcp_test

import (
	"slices"
	"testing"

	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/internal/mcpmethod"
)

// A rule cannot name a method for which MethodNeedsNoRule returns true. MethodNeedsNoRule returns true for all methods
// that a rule cannot name, except for the two methods that begin a subscription.
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
