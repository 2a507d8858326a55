package engine

import (
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// checkApproval checks the keys for approvals in a rule.
func (c *checker) checkApproval(r *Rule) {
	if r.Action != ActionRequireApproval {
		c.checkNoApproval(r)
		return
	}
	c.checkApprovalMethods(r)
	if r.Quorum < 0 || r.Quorum > MaxQuorum {
		c.add("quorum", fmt.Sprintf("%d is not between 1 and %d", r.Quorum, MaxQuorum), "")
	}
	c.checkApprovers(r.Approvers)
	c.checkTime("decide_within", r.DecideWithin)
	c.checkTime("execute_within", r.ExecuteWithin)
	c.checkSelfConfirm(r)
	c.checkGrant(r.Grant)
	c.checkStepUp(&r.ApproveWith)
}

// checkApprovalMethods checks the methods of a rule that requires approval. Only some methods can require approval.
// Only tools/call can have a grant (one approval for several calls), because a grant is bound to a tool definition.
func (c *checker) checkApprovalMethods(r *Rule) {
	if _, methods := r.Match.scope(); !methods {
		return
	}
	if !r.Match.allApprovable() {
		c.add("action", "approval is possible only for "+strings.Join(approvableMethods, ", "),
			"name the methods in match.method, without wildcards; allow or deny other methods in another rule")
	}
	if r.Grant != (Grant{}) {
		c.add("grant", "is bound to a tool's definition; other methods need an approval for each call", "remove it, or write a separate rule for tools/call")
	}
}

// checkNoApproval checks a rule that does not require approval. It adds an error for each key for approvals, because
// such keys have no effect in this rule.
func (c *checker) checkNoApproval(r *Rule) {
	for _, key := range []struct {
		name string
		set  bool
	}{
		{"approvers", len(r.Approvers) > 0},
		{"quorum", r.Quorum != 0},
		{"decide_within", r.DecideWithin != 0},
		{"execute_within", r.ExecuteWithin != 0},
		{"self_confirm", r.SelfConfirm},
		{"grant", r.Grant != Grant{}},
		{"approve_with", !r.ApproveWith.isZero()},
	} {
		if key.set {
			c.add(key.name, "has no effect without action: require_approval", "")
		}
	}
}

func (c *checker) checkApprovers(groups []string) {
	if len(groups) > MaxApprovers {
		c.add("approvers", fmt.Sprintf("has more than %d groups", MaxApprovers), "")
		return
	}
	for i, group := range groups {
		field := fmt.Sprintf("approvers[%d]", i)
		if group == "" || len(group) > MaxNameBytes || !utf8.ValidString(group) || strings.ContainsFunc(group, unicode.IsControl) {
			c.add(field, "is not a group's name", "use 1 to 128 bytes without control characters")
		}
		if slices.Contains(groups[:i], group) {
			c.add(field, "is listed twice", "keep one of them")
		}
	}
}

// checkTime checks one of the durations that a rule sets for approvals. Zero means that the rule does not set it.
func (c *checker) checkTime(field string, d time.Duration) {
	if d != 0 && (d < MinTime || d > MaxTime) {
		c.add(field, "is not between 1s and 30 days", "")
	}
}

// checkSelfConfirm adds an error if a rule has self_confirm and also a key that can't be combined with it.
func (c *checker) checkSelfConfirm(r *Rule) {
	switch {
	case !r.SelfConfirm:
	case len(r.Approvers) > 0:
		c.add("self_confirm", "lets the person at the agent confirm, whose groups are not known, but approvers names groups", "remove one of them")
	case r.Quorum > 1:
		c.add("self_confirm", fmt.Sprintf("lets one person confirm, and the quorum is %d", r.Quorum), "remove one of them")
	case r.Grant != Grant{}:
		c.add("self_confirm", "confirms one call, and a grant is for more", "remove one of them")
	case !r.ApproveWith.isZero():
		c.add("self_confirm", "lets the person at the agent confirm, whose sign-in is not known, but approve_with requires one", "remove one of them")
	}
}

// checkStepUp checks the requirements for the authentication of approvers. The values of acr may contain only
// characters that are valid in a scope (RFC 6749, section 3.3), because they are sent as a space-separated list.
func (c *checker) checkStepUp(s *StepUp) {
	if s.MaxAge != 0 && (s.MaxAge < MinAuthAge || s.MaxAge > MaxAuthAge) {
		c.add("approve_with.max_age", "is not between 1m and 24h", "")
	}
	if len(s.ACR) > MaxACRValues {
		c.add("approve_with.acr", fmt.Sprintf("has more than %d values", MaxACRValues), "")
		return
	}
	for i, value := range s.ACR {
		field := fmt.Sprintf("approve_with.acr[%d]", i)
		if value == "" || len(value) > MaxACRBytes || strings.ContainsFunc(value, notInScope) {
			c.add(field, "is not a value of the claim acr", `use 1 to 256 printable ASCII characters without spaces, " and \`)
		}
		if slices.Contains(s.ACR[:i], value) {
			c.add(field, "is listed twice", "keep one of them")
		}
	}
}

func notInScope(r rune) bool { return r <= ' ' || r > '~' || r == '"' || r == '\\' }

func (c *checker) checkGrant(g Grant) {
	if g == (Grant{}) {
		return
	}
	if g.Calls < 1 || g.Calls > MaxGrantCalls {
		c.add("grant.calls", fmt.Sprintf("%d is not between 1 and %d", g.Calls, MaxGrantCalls), "")
	}
	if g.Within < MinTime || g.Within > MaxGrantTime {
		c.add("grant.within", "is not between 1s and 7 days", "")
	}
	switch {
	case g.Where != "":
		c.checkCondition("grant.where", g.Condition())
	case g.ExtraArgs:
		c.add("grant.extra_args", "has no effect without where", "remove it: the grant covers all calls of the tool")
	}
}

// hasUnprintable reports whether the text of a condition contains an unprintable character. Such a character could hide
// a part of the text from a reader.
func hasUnprintable(text string) bool {
	return !utf8.ValidString(text) || strings.ContainsFunc(text, func(r rune) bool { return r != '\t' && unprintable(r) })
}
