package engine_test

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"pgregory.net/rapid"

	"github.com/sluice-mesh/sluice/services/policy/internal/condition"
	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
)

// someChecks contains functions that check arguments. The keys describe the results that the functions return.
var someChecks = map[string]func(string) error{
	"schema unknown": nil,
	"valid":          func(string) error { return nil },
	"invalid":        func(string) error { return errors.New("arguments.x is required") },
}

// drawForward randomly sets the timeout of a rule, and whether the rule checks the arguments.
func drawForward(t *rapid.T, r *engine.Rule) {
	if r.Action == engine.ActionDeny || r.Action == engine.ActionHide {
		return
	}
	r.Timeout = rapid.SampledFrom([]time.Duration{0, 0, time.Second, time.Minute}).Draw(t, "timeout")
	if tools, _ := modelScope(r.Match); tools {
		r.Strict = rapid.IntRange(0, 4).Draw(t, "strict") == 0
	}
	if r.Action != engine.ActionNone {
		r.NeedsScope = drawSome(t, "needs scope", someScopes, 1)
	}
}

// modelForward applies timeouts, and checks of scopes and arguments, to a decision that was made without them.
func modelForward(d *engine.Decision, documents []engine.Document, call engine.Call) {
	if d.Effect == engine.Deny {
		return
	}
	type applied struct {
		ref   engine.RuleRef
		rule  engine.Rule
		chain int
	}
	var all []applied
	for i, p := range principals(call.Subject) {
		for _, doc := range documents {
			for _, r := range doc.Rules {
				if modelConcerns(doc, r, call, p) && (modelDecides(doc, r, call, p) || modelResult(r, call, p) == condition.Failed) {
					all = append(all, applied{engine.RuleRef{Document: doc.Name, Rule: modelName(r)}, r, i})
				}
			}
		}
	}
	slices.SortStableFunc(all, func(a, b applied) int {
		return cmp.Or(cmp.Compare(a.chain, b.chain), cmp.Compare(a.ref.Document, b.ref.Document), cmp.Compare(a.ref.Rule, b.ref.Rule))
	})
	for i, p := range principals(call.Subject) {
		refused := engine.Decision{Code: engine.ScopeMissing, ChainIndex: i}
		for _, a := range all {
			if a.chain != i {
				continue
			}
			refused.NeededScopes = append(refused.NeededScopes, a.rule.NeedsScope...)
			for _, scope := range a.rule.NeedsScope {
				if slices.Contains(p.Scopes, scope) {
					continue
				}
				refused.MissingScopes = append(refused.MissingScopes, scope)
				if refused.Rule.IsZero() {
					refused.Rule = a.ref
				}
			}
		}
		if len(refused.MissingScopes) > 0 {
			refused.NeededScopes = slices.Compact(slices.Sorted(slices.Values(refused.NeededScopes)))
			refused.MissingScopes = slices.Compact(slices.Sorted(slices.Values(refused.MissingScopes)))
			*d = refused
			return
		}
	}
	for _, a := range all {
		if a.rule.Strict && modelCallsTool(call) && (call.CheckArguments == nil || call.CheckArguments("") != nil) {
			why := "the tool's definition is not known here; list the server's tools (tools/list) and send the call again"
			if call.CheckArguments != nil {
				why = "arguments.x is required"
			}
			*d = engine.Decision{Code: engine.TypeError, Rule: a.ref, ChainIndex: a.chain, Message: why + " (rule " + a.ref.String() + " has forward: strict)"}
			return
		}
	}
	slices.SortStableFunc(all, func(a, b applied) int { // of equal timeouts, that of the first rule counts
		return cmp.Or(cmp.Compare(a.ref.Document, b.ref.Document), cmp.Compare(a.ref.Rule, b.ref.Rule))
	})
	for _, a := range all {
		if a.rule.Timeout != 0 && (d.Timeout == 0 || a.rule.Timeout < d.Timeout) {
			d.Timeout, d.TimeoutRule = a.rule.Timeout, a.ref
		}
	}
}
