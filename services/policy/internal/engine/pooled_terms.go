package engine

import (
	"encoding/hex"
	"slices"
	"time"

	"github.com/sluice-mesh/sluice/services/internal/canonicaljson"
)

// ApprovalTerms says who must approve a call, how long they have to decide, and what the approval covers.
type ApprovalTerms struct {
	// Approvers contains the groups whose members may approve, sorted. If it is empty, any approver may approve.
	Approvers []string
	// Quorum is the number of different people who must approve. It is at least 1.
	Quorum int
	// DecideWithin is how long approvers have to decide. ExecuteWithin is how long an approved call can still be made.
	// Zero means the configured time.
	DecideWithin, ExecuteWithin time.Duration
	// SelfConfirm allows the person who uses the agent to confirm the call. If it is true, Quorum is 1, and Approvers
	// and Grant are empty.
	SelfConfirm bool
	// Grant allows the approval to cover several calls. If it is zero, the approval covers only this call. Grant.Where is
	// always empty, because the conditions are in [ApprovalTerms.Where].
	Grant Grant
	// Where contains the conditions in the grants of all rules that require approval, sorted and without duplicates. All
	// these conditions are true for the call. Where is empty if Grant is zero, or if it covers all calls to the tool.
	Where []string
	// ApproveWith specifies how approvers must have authenticated. The acr values in it are sorted. If it is not zero,
	// SelfConfirm is false.
	ApproveWith StepUp
}

// Scope returns the SHA-256 digest of the grant's conditions in hexadecimal, or "" if the grant covers all calls to the
// tool.
func (t *ApprovalTerms) Scope() string {
	if len(t.Where) == 0 {
		return ""
	}
	sum := canonicaljson.Sum(t.Where...)
	return hex.EncodeToString(sum[:])
}

// Times contains the durations for approvals. They are the defaults for rules that set none. Both must be positive.
type Times struct {
	// Decide is how long approvers have to decide. Execute is how long an approved call can still be made.
	Decide, Execute time.Duration
}

// poolTerms sets v.terms to approval terms that satisfy all rules that require approval. The package comment describes
// how terms are combined.
func (s *Set) poolTerms(v *verdict, rules []*rule, call *Call) {
	var asking []*rule
	for _, r := range rules {
		if r.Action == ActionRequireApproval && call.appliesToAny(r) {
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
	v.poolStepUp(asking)
}

// poolApprovers sets the approvers to the groups that are in every list of approvers. If there is no such group, it
// sets v.conflict.
func (v *verdict) poolApprovers(asking []*rule) {
	v.terms.Approvers = v.common(asking, "lists of approvers have no group", func(r *rule) []string { return r.Approvers })
}

// poolStepUp sets the shortest maximum age. It also sets the acr values that are in every list of acr values. If there
// is no such value, it sets v.conflict.
func (v *verdict) poolStepUp(asking []*rule) {
	for _, r := range asking {
		if age := r.ApproveWith.MaxAge; age > 0 && (v.terms.ApproveWith.MaxAge == 0 || age < v.terms.ApproveWith.MaxAge) {
			v.terms.ApproveWith.MaxAge = age
		}
	}
	v.terms.ApproveWith.ACR = v.common(asking, "lists approve_with.acr have no value", func(r *rule) []string { return r.ApproveWith.ACR })
}

// common returns the strings that are in all nonempty lists. The function of returns the list of a rule. If there is no
// such string, common sets v.conflict, and sets v.conflictText to the parameter nothing.
func (v *verdict) common(asking []*rule, nothing string, of func(*rule) []string) (out []string) {
	var listed *rule // first rule with a list
	for _, r := range asking {
		list := of(r)
		if len(list) == 0 {
			continue
		}
		if listed == nil {
			listed, out = r, slices.Clone(list)
			continue
		}
		out = slices.DeleteFunc(out, func(text string) bool { return !slices.Contains(list, text) })
		if len(out) == 0 {
			if v.conflict[0] == nil {
				v.conflict, v.conflictText = [2]*rule{listed, r}, nothing
			}
			return nil
		}
	}
	return out
}

// shortest returns the shortest duration in the rules. The configured duration counts for rules that set none. If no
// rule sets a duration, shortest returns zero, which means the configured duration.
func shortest(rules []*rule, configured time.Duration, of func(*rule) time.Duration) time.Duration {
	var best time.Duration
	unset := false
	for _, r := range rules {
		switch given := of(r); {
		case given == 0:
			unset = true
		case best == 0 || given < best:
			best = given
		}
	}
	if unset {
		return min(best, configured)
	}
	return best
}

// idempotent reports whether all rules with an action that apply to a call have Idempotent set. At least one such rule
// must apply to each principal, because a default never makes a call idempotent.
func idempotent(rules []*rule, call *Call) bool {
	for i := range call.Subject.size() {
		declared := false
		for _, r := range rules {
			if r.Action == ActionNone || !call.applies(r, i) {
				continue
			}
			if !r.Idempotent {
				return false
			}
			declared = true
		}
		if !declared {
			return false
		}
	}
	return true
}

func matchesAnyPrincipal(r *rule, subject *Subject) bool {
	for i := range subject.size() {
		if r.matchesPrincipal(subject.at(i)) {
			return true
		}
	}
	return false
}
