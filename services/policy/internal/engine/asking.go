package engine

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/sluice-mesh/sluice/services/policy/internal/condition"
)

// approval checks the keys about approvals.
func (c *checker) approval(r *Rule) {
	if r.Action != ActionRequireApproval {
		c.unasked(r)
		return
	}
	c.askable(r)
	if r.Quorum < 0 || r.Quorum > MaxQuorum {
		c.add("quorum", fmt.Sprintf("%d is not between 1 and %d", r.Quorum, MaxQuorum), "")
	}
	c.approvers(r.Approvers)
	c.time("decide_within", r.DecideWithin)
	c.time("execute_within", r.ExecuteWithin)
	c.selfConfirm(r)
	c.grant(r.Grant)
}

// askable checks that the rule only requires approval for methods for which people can decide. A grant is bound to a
// tool's definition, which no other method has.
func (c *checker) askable(r *Rule) {
	if _, methods := r.Match.about(); !methods {
		return
	}
	if !r.Match.asksWell() {
		c.add("action", "approval is possible only for "+strings.Join(askable, ", "),
			"name the methods in match.method, without wildcards; allow or deny other methods by a rule of their own")
	}
	if r.Grant != (Grant{}) {
		c.add("grant", "is bound to a tool's definition; other methods need an approval for each call", "take it out, or give tools/call a rule of its own")
	}
}

// unasked reports keys that have no effect in a rule that does not require approval.
func (c *checker) unasked(r *Rule) {
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
	} {
		if key.set {
			c.add(key.name, "has no effect without action: require_approval", "")
		}
	}
}

func (c *checker) approvers(groups []string) {
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

// time checks a time of an approval; 0 means none.
func (c *checker) time(field string, d time.Duration) {
	if d != 0 && (d < MinTime || d > MaxTime) {
		c.add(field, "is not between 1s and 30 days", "")
	}
}

// selfConfirm refuses terms that a confirmation by the person at the agent can't meet.
func (c *checker) selfConfirm(r *Rule) {
	switch {
	case !r.SelfConfirm:
	case len(r.Approvers) > 0:
		c.add("self_confirm", "lets the person at the agent confirm, whose groups are not known, but approvers names groups", "take one of them out")
	case r.Quorum > 1:
		c.add("self_confirm", fmt.Sprintf("lets one person confirm, and the quorum is %d", r.Quorum), "take one of them out")
	case r.Grant != Grant{}:
		c.add("self_confirm", "confirms one call, and a grant is for more", "take one of them out")
	}
}

func (c *checker) grant(g Grant) {
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
		c.condition("grant.where", g.Condition())
	case g.ExtraArgs:
		c.add("grant.extra_args", "has no effect without where", "take it out: the grant covers all calls of the tool")
	}
}

func (c *checker) condition(field, text string) {
	if !utf8.ValidString(text) || strings.ContainsFunc(text, func(r rune) bool { return r != '\t' && unprintable(r) }) {
		c.add(field, "contains an unprintable character", `write it as an escape, for example "\u00a0"`)
		return
	}
	if _, err := condition.Compile(text); err != nil {
		if problem, ok := errors.AsType[*condition.TextError](err); ok {
			c.add(field, problem.Message, problem.Suggestion)
			return
		}
		c.add(field, err.Error(), "")
	}
}
