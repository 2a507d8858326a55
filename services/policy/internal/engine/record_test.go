package engine_test

import (
	"testing"

	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
)

// If a call is not denied, its arguments are recorded if at least one rule that applies to the call has the key record.
func TestDecide_RecordsArgumentsIfARuleThatAppliesAsksForIt(t *testing.T) {
	t.Parallel()
	set := compileRules(t,
		engine.Rule{Tool: "plain", Action: engine.ActionAllow},
		engine.Rule{Tool: "recorded", Action: engine.ActionAllow, Record: true},
		engine.Rule{Tool: "ask", Action: engine.ActionRequireApproval, Record: true},
		engine.Rule{Tool: "split", Action: engine.ActionAllow},
		engine.Rule{Name: "large", Match: engine.Match{Tool: []string{"split", "denied"}}, When: "args.n > 10", Record: true},
		engine.Rule{Name: "others", Match: engine.Match{Principal: []string{"ben"}}, Record: true},
	)
	for name, tt := range map[string]struct {
		tool, params string
		want         bool
	}{
		"no rule asks":    {"plain", `{"arguments":{"n":11}}`, false},
		"the entry asks":  {"recorded", `{"arguments":{"n":1}}`, true},
		"with approval":   {"ask", `{"arguments":{"n":1}}`, true},
		"condition true":  {"split", `{"arguments":{"n":11}}`, true},
		"condition false": {"split", `{"arguments":{"n":1}}`, false},
		"condition error": {"split", `{"arguments":{}}`, true},
		"denied":          {"denied", `{"arguments":{"n":11}}`, false},
	} {
		call := callOf(tt.tool)
		call.Params = tt.params
		if got := set.Decide(call); got.Record != tt.want {
			t.Errorf("%s: recorded %v, want %v", name, got.Record, tt.want)
		}
	}
	chained := callOf("plain")
	chained.Params = `{"arguments":{"n":2}}`
	chained.Subject.Chain = []engine.Principal{{Tenant: "default", Name: "ben"}}
	if !set.Decide(chained).Record {
		t.Error("the rule for a principal in the chain does not record")
	}
}
