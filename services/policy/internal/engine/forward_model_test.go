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

// modelTokens returns, for each principal, the index of the first principal that comes from the same token.
func modelTokens(s engine.Subject) (out []int) {
	all := principals(s)
	for i, p := range all {
		out = append(out, i)
		if i > 0 && p.Issuer != "" && p.Issuer == all[i-1].Issuer && p.Client == all[i-1].Client && slices.Equal(p.Scopes, all[i-1].Scopes) {
			out[i] = out[i-1]
		}
	}
	return out
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
	tokens := modelTokens(call.Subject)
	for token := range tokens {
		refused := engine.Decision{Code: engine.ScopeMissing}
		for _, a := range all {
			if tokens[a.chain] != token {
				continue
			}
			refused.NeededScopes = append(refused.NeededScopes, a.rule.NeedsScope...)
			for _, scope := range a.rule.NeedsScope {
				if slices.Contains(principals(call.Subject)[a.chain].Scopes, scope) {
					continue
				}
				refused.MissingScopes = append(refused.MissingScopes, scope)
				if refused.Rule.IsZero() {
					refused.Rule, refused.ChainIndex = a.ref, a.chain
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
