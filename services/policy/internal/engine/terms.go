package engine

import (
	"encoding/hex"
	"slices"
	"time"

	"github.com/sluice-mesh/sluice/services/internal/canonical"
)

// ApprovalTerms say who may let a call pass, and how.
type ApprovalTerms struct {
	// Approvers are groups whose members may decide, sorted. Empty: whoever may
	// approve at all.
	Approvers []string
	// Quorum is how many distinct people must agree, at least 1.
	Quorum int
	// DecideWithin is how long they have, and ExecuteWithin how long the approved
	// call may wait to run; 0: the configured time.
	DecideWithin, ExecuteWithin time.Duration
	// SelfConfirm lets the person at the agent confirm; then Quorum is 1, and
	// Approvers and Grant are empty.
	SelfConfirm bool
	// Grant is more than one call; zero: this call, once. Its Where is empty: the
	// conditions are Where below.
	Grant Grant
	// Where are the conditions of all rules that ask, sorted, each once. All hold for
	// the call. Empty where Grant is zero, or covers all calls of the tool.
	Where []string
}

// Scope names the set of calls that the grant covers, beside what every grant is bound
// to: empty for all, else the hex SHA-256 of the conditions.
func (t *ApprovalTerms) Scope() string {
	if len(t.Where) == 0 {
		return ""
	}
	sum := canonical.Sum(t.Where...)
	return hex.EncodeToString(sum[:])
}

// Times are how long an approval may take where a rule says nothing; both positive.
type Times struct {
	// Decide is how long people have, and Execute how long an approved call may
	// wait to run.
	Decide, Execute time.Duration
}

// poolTerms contents every rule that asks for approval: the largest quorum, the
// groups that all lists have in common, the shortest times, and of what makes it
// easier to approve only what every rule offers.
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

// poolApprovers leaves the groups that all lists have in common.
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

// shortest is the shortest time that the rules give, to one that gives none being
// the configured one; 0 where no rule gives any.
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

// idempotent reports whether all rules that decide on a call say that it may be sent
// again. A default says nothing, so for each principal one rule must.
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
