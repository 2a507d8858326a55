package engine_test

import (
	"testing"

	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
)

// The definition of a tool has changed, and a rule denies the tool. The caller gets the code and the reason of the
// rule.
func TestDecide_RuleThatDeniesExplainsARefusalBeforeTheCatalog(t *testing.T) {
	t.Parallel()
	set := compile(t, engine.Document{Name: "d", Rules: []engine.Rule{{Tool: "t", Action: engine.ActionDeny, Reason: "use u"}, {Tool: "u", Action: engine.ActionAllow}}})
	changed := engine.Facts{Status: engine.Changed}
	d := set.Decide(engine.Call{Server: "s", Tool: "t", Subject: person("ana"), Facts: changed})
	if d.Code != engine.DeniedByRule || d.Message != "use u" || d.Rule.Rule != "tools.t" {
		t.Errorf("a denied tool: %s %q %s", d.Code, d.Message, d.Rule)
	}
	d = set.Decide(engine.Call{Server: "s", Tool: "u", Subject: person("ana"), Facts: changed})
	if d.Code != engine.ToolChanged || !d.Rule.IsZero() {
		t.Errorf("an allowed tool: %s %q %s", d.Code, d.Message, d.Rule)
	}
}

// If a default refuses a call to the model tool, the message contains a hint. The hint is not shown if a rule denies
// the call with another reason, or if only the principal that started the caller is refused.
func TestDecide_ModelHintConcernsOnlyTheCaller(t *testing.T) {
	t.Parallel()
	forAna := engine.Rule{Name: "ana", Action: engine.ActionAllow, Match: engine.Match{Tool: []string{"wasm_model_ask"}, Principal: []string{"ana"}}}
	call := engine.Call{Server: "agents", Tool: "wasm_model_ask", Subject: person("ana"), Facts: callable}
	call.Subject.Chain = []engine.Principal{{Tenant: call.Subject.Caller.Tenant, Name: "ben"}}
	d := compile(t, engine.Document{Name: "d", Default: engine.DefaultDeny, Rules: []engine.Rule{forAna}}).Decide(call)
	if d.Code != engine.DeniedByDefault || d.ChainIndex != 1 || d.Message != "" {
		t.Errorf("the principal behind the caller is refused: %s, principal %d, %q", d.Code, d.ChainIndex, d.Message)
	}
	call.Subject.Chain = nil
	budget := engine.Rule{Name: "budget", Action: engine.ActionDeny, Match: engine.Match{Tool: []string{"wasm_*"}}, Reason: "the budget is used up"}
	d = compile(t, engine.Document{Name: "d", Rules: []engine.Rule{forAna, budget}}).Decide(call)
	if d.Code != engine.DeniedByRule || d.Message != "the budget is used up" {
		t.Errorf("a rule denies: %s %q", d.Code, d.Message)
	}
}
