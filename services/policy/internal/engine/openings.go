package engine

import (
	"cmp"
	"fmt"
	"slices"
)

// MayOpen compares two versions of documents. It returns the rules and defaults whose addition, removal or change could
// make calls less restricted. Calls become less restricted if refused calls are permitted, or if calls that needed
// approval are allowed. If the result is empty, no call becomes less restricted. The reference to a default has the
// rule name "default". Changes to names and reasons do not count. Changes to limits and approval terms count only if
// the limits or terms can refuse calls.
func MayOpen(before, after []Document) (out []RuleRef) {
	k := keeper{
		observes:  slices.ContainsFunc(after, func(d Document) bool { return !d.ObserveUntil.IsZero() }),
		approvers: listsMayConflict(before, approversOf), acr: listsMayConflict(before, acrOf), limits: mayExceedLimits(before),
	}
	for _, added := range k.changedRules(before, after) {
		if added.permits {
			out = append(out, added.ref)
		}
	}
	for _, removed := range k.changedRules(after, before) {
		if removed.restricts {
			out = append(out, removed.ref)
		}
	}
	slices.SortFunc(out, func(a, b RuleRef) int { return cmp.Compare(a.String(), b.String()) })
	return slices.Compact(out)
}

// A keeper determines which rules remain the same when documents change.
type keeper struct {
	// observes is true if a document may be in observe mode after the change. A server is in observe mode if all documents
	// that apply to it are in observe mode. Therefore any enforced document may be the reason why calls to a server are
	// restricted.
	observes bool
	// Each of these fields is a possible reason for refusals before the change. approvers is true if lists of approvers
	// may have had no group in common. acr is true if lists of acr values may have had no value in common. limits is true
	// if too many limits may have applied to a call.
	approvers, acr, limits bool
}

func approversOf(r *Rule) []string { return r.Approvers }

func acrOf(r *Rule) []string { return r.ApproveWith.ACR }

// listsMayConflict reports whether the rules' lists have no element in common. of is a function that returns the list
// of a rule, for example its approvers.
func listsMayConflict(documents []Document, of func(*Rule) []string) bool {
	var common []string
	found := false
	for i := range documents {
		for j := range documents[i].Rules {
			list := of(&documents[i].Rules[j])
			switch {
			case len(list) == 0:
			case !found:
				common, found = slices.Clone(list), true
			default:
				common = slices.DeleteFunc(common, func(text string) bool { return !slices.Contains(list, text) })
			}
		}
	}
	return found && len(common) == 0
}

// mayExceedLimits reports whether the documents have so many limits that more than [MaxLimits] may apply to a call.
// Each limit can apply to each principal of a call. `default: by_risk` adds one more limit.
func mayExceedLimits(documents []Document) bool {
	limits := 1
	for i := range documents {
		for _, r := range documents[i].Rules {
			limits += len(r.Limits)
		}
	}
	return limits*(MaxChain+1) > MaxLimits
}

// A changedRule is a rule or a default.
type changedRule struct {
	ref RuleRef
	// permits is true if the rule or default allows calls or requires approval. restricts is true if it refuses calls or
	// requires approval.
	permits, restricts bool
}

// changedRules returns the rules and defaults in documents that are not in base.
func (k keeper) changedRules(base, documents []Document) (out []changedRule) {
	known := make(map[string]bool)
	for i := range base {
		for key := range k.keysOf(&base[i]) {
			known[key] = true
		}
	}
	for i := range documents {
		for key, changed := range k.keysOf(&documents[i]) {
			if !known[key] {
				out = append(out, changed)
			}
		}
	}
	return out
}

// keysOf returns the rules and the default of a document. The map has the same key for rules with the same effect.
func (k keeper) keysOf(d *Document) map[string]changedRule {
	out := make(map[string]changedRule)
	key := func(parts ...any) string {
		return fmt.Sprintf("%#v", append(parts, d.Server, d.ObserveUntil.UnixNano()))
	}
	byRisk := d.Default == DefaultByRisk
	out[key("default", d.Default)] = changedRule{
		ref:       RuleRef{Document: d.Name, Rule: "default"},
		permits:   d.Default == DefaultAllow || byRisk || !d.ObserveUntil.IsZero(),
		restricts: d.Default == DefaultDeny || byRisk || k.observes,
	}
	for i := range d.Rules {
		r := &d.Rules[i]
		approval := r.Action == ActionRequireApproval
		id := key("rule", r.Tool, r.Match, r.When, r.ExtraArgs, r.Otherwise, r.Strict, r.NeedsScope, r.Action, r.ObserveUntil.UnixNano(), k.terms(r))
		out[id] = changedRule{
			ref:       RuleRef{Document: d.Name, Rule: r.label()},
			permits:   approval || r.Action == ActionAllow,
			restricts: approval || r.Action == ActionDeny || r.Action == ActionHide || r.Strict || len(r.NeedsScope) > 0 || k.limits && len(r.Limits) > 0,
		}
	}
	return out
}

// terms returns those approver groups, acr values and limit dimensions of a rule that can be a reason for refusing
// calls.
func (k keeper) terms(r *Rule) (out []any) {
	if k.approvers {
		out = append(out, r.Approvers)
	}
	if k.acr {
		out = append(out, r.ApproveWith.ACR)
	}
	if k.limits {
		for _, l := range r.Limits {
			out = append(out, l.Per)
		}
	}
	return out
}
