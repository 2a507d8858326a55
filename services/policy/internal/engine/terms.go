package engine

import (
	"encoding/hex"
	"slices"
	"time"

	"github.com/sluice-mesh/sluice/services/internal/canonical"
)

// ApprovalTerms say who may approve a call, and on what terms.
type ApprovalTerms struct {
	// Approvers are the groups whose members may decide, sorted. Empty: any approver.
	Approvers []string
	// Quorum is how many distinct people must agree, at least 1.
	Quorum int
	// DecideWithin is how long people have to decide, and ExecuteWithin how long the approved call may wait to be made;
	// 0: the configured time.
	DecideWithin, ExecuteWithin time.Duration
	// SelfConfirm lets the person at the agent confirm. Then Quorum is 1, and Approvers and Grant are empty.
	SelfConfirm bool
	// Grant covers more than one call; zero: this call, once. Its Where is empty; the conditions are in Where below.
	Grant Grant
	// Where are the conditions of all rules that require approval, sorted, each once. All hold for the call. Empty if
	// Grant is zero, or covers all calls of the tool.
	Where []string
}

// Scope identifies the set of calls that the grant covers, in addition to what every grant is bound to: empty for all
// calls, otherwise the hex SHA-256 of the conditions.
func (t *ApprovalTerms) Scope() string {
	if len(t.Where) == 0 {
		return ""
	}
	sum := canonical.Sum(t.Where...)
	return hex.EncodeToString(sum[:])
}

// Times are the times of approvals for rules that set none; both positive.
type Times struct {
	// Decide is how long people have to decide, and Execute how long an approved call may wait to be made.
	Decide, Execute time.Duration
}

// poolTerms sets terms that satisfy every rule that requires approval: the largest quorum, the groups that all lists
// have in common, the shortest times, and self-confirmation and a grant only if every rule offers them.
func (s *Set) poolTerms(v *verdict, rules []*rule, call *Call) {
	var asking []*rule
	for _, r := range rules {
		if r.Action == ActionRequireApproval && concernsAny(r, &call.Subject) {
			asking = append(asking, r)
		}
	}
	v.terms = &ApprovalTerms{Quorum: 1, SelfConfirm: true}
	for _, r := range asking {
		v.terms.Quorum = max(v.terms.Quorum, r.Quorum)
		v.terms.SelfConfirm = v.terms.SelfConfirm && r.SelfConfirm
	}
	v.terms.Grant, v.terms.Where = poolGrants(asking, call)
	v.terms.DecideWithin = shortest(asking, s.times.Decide, func(r *rule) time.Duration { return r.DecideWithin })
	v.terms.ExecuteWithin = shortest(asking, s.times.Execute, func(r *rule) time.Duration { return r.ExecuteWithin })
	v.poolApprovers(asking)
}

// poolApprovers sets the groups that all lists have in common.
func (v *verdict) poolApprovers(asking []*rule) {
	var listed *rule // the first that lists approvers
	for _, r := range asking {
		if len(r.Approvers) == 0 {
			continue
		}
		if listed == nil {
			listed = r
			v.terms.Approvers = slices.Clone(r.Approvers)
			continue
		}
		v.terms.Approvers = slices.DeleteFunc(v.terms.Approvers, func(group string) bool {
			return !slices.Contains(r.Approvers, group)
		})
		if len(v.terms.Approvers) == 0 {
			v.conflict = [2]*rule{listed, r}
			return
		}
	}
}

// shortest returns the shortest time of the rules, counting a rule without a time as the configured time; 0 if no rule
// sets a time.
func shortest(rules []*rule, configured time.Duration, of func(*rule) time.Duration) time.Duration {
	var best time.Duration
	silent := false
	for _, r := range rules {
		switch given := of(r); {
		case given == 0:
			silent = true
		case best == 0 || given < best:
			best = given
		}
	}
	if silent {
		return min(best, configured)
	}
	return best
}

// idempotent reports whether all rules that decide on a call declare it idempotent. A default does not, so at least
// one rule must decide for each principal.
func idempotent(rules []*rule, subject *Subject) bool {
	for i := range subject.size() {
		said := false
		for _, r := range rules {
			if r.Action == ActionNone || !r.concerns(subject.at(i)) {
				continue
			}
			if !r.Idempotent {
				return false
			}
			said = true
		}
		if !said {
			return false
		}
	}
	return true
}

func concernsAny(r *rule, subject *Subject) bool {
	for i := range subject.size() {
		if r.concerns(subject.at(i)) {
			return true
		}
	}
	return false
}
