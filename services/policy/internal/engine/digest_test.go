package engine_test

import (
	"encoding/hex"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
)

// oldDigest is the digest of the rule in TestRuleDigest_IsStableForRulesWithoutNewerKeys. It was computed by an earlier
// version, in which rules had fewer keys.
const oldDigest = "a4409e3d1956f5e91ec368d4cdf66405293f941711700949fcd72a8b86782721"

func TestRuleDigest_ChangesOnlyWithTheRule(t *testing.T) {
	t.Parallel()
	approval := engine.Rule{Name: "held", Action: engine.ActionRequireApproval, Approvers: []string{"a"}}
	digest := func(rule engine.Rule, more ...engine.Rule) [32]byte {
		set := compile(t, engine.Document{Name: "d", Rules: append([]engine.Rule{rule}, more...)})
		return set.Decide(engine.Call{Facts: callable, Server: "s", Tool: "t", Subject: person("x")}).RuleDigest
	}
	base := digest(approval)
	if base == ([32]byte{}) {
		t.Error("no digest")
	}
	if digest(approval, engine.Rule{Name: "z", Action: engine.ActionAllow}) != base {
		t.Error("another rule changes the digest")
	}
	for name, change := range map[string]func(*engine.Rule){
		"quorum":         func(r *engine.Rule) { r.Quorum = 2 },
		"decide_within":  func(r *engine.Rule) { r.DecideWithin = time.Hour },
		"execute_within": func(r *engine.Rule) { r.ExecuteWithin = time.Hour },
		"self_confirm":   func(r *engine.Rule) { r.Approvers, r.SelfConfirm = nil, true },
		"grant":          func(r *engine.Rule) { r.Grant = engine.Grant{Calls: 1, Within: time.Second, Critical: true} },
		"where": func(r *engine.Rule) {
			r.Grant = engine.Grant{Calls: 1, Within: time.Second, Critical: true, Where: "args.n == 1"}
		},
		"extra_args": func(r *engine.Rule) {
			r.Grant = engine.Grant{Calls: 1, Within: time.Second, Critical: true, Where: "args.n == 1", ExtraArgs: true}
		},
		"idempotent":  func(r *engine.Rule) { r.Idempotent = true },
		"timeout":     func(r *engine.Rule) { r.Timeout = time.Second },
		"forward":     func(r *engine.Rule) { r.Strict = true },
		"needs_scope": func(r *engine.Rule) { r.NeedsScope = []string{"a"} },
		"max_age":     func(r *engine.Rule) { r.ApproveWith.MaxAge = time.Minute },
		"acr":         func(r *engine.Rule) { r.ApproveWith.ACR = []string{"phr"} },
	} {
		changed := approval
		change(&changed)
		if digest(changed) == base {
			t.Errorf("a changed %s leaves the digest as it was", name)
		}
	}
}

// TestRuleDigest_IsStableForRulesWithoutNewerKeys checks that the digest of a rule stays the same after an upgrade that
// adds keys to rules, if the rule uses none of the added keys. The rule's approvals therefore remain valid.
func TestRuleDigest_IsStableForRulesWithoutNewerKeys(t *testing.T) {
	t.Parallel()
	set := compile(t, engine.Document{Name: "d", Rules: []engine.Rule{{
		Name: "held", Action: engine.ActionRequireApproval, Approvers: []string{"a"}, Quorum: 2, Reason: "why",
	}}})
	got := set.Decide(engine.Call{Facts: callable, Server: "s", Tool: "t", Subject: person("x")}).RuleDigest
	if text := hex.EncodeToString(got[:]); text != oldDigest {
		t.Errorf("the digest is %s, and was %s", text, oldDigest)
	}
}
