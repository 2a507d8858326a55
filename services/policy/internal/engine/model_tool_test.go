package engine_test

import (
	"strings"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
)

// TestDecide_ModelToolIsDeniedToOtherCallersUnlessNamed checks that only agents of the mesh may call wasm_model_ask,
// unless a rule names both the tool and its callers.
func TestDecide_ModelToolIsDeniedToOtherCallersUnlessNamed(t *testing.T) {
	t.Parallel()
	allow := func(tool string, match engine.Match) []engine.Rule {
		r := engine.Rule{Name: "r", Action: engine.ActionAllow, Match: match}
		r.Match.Tool = []string{tool}
		return []engine.Rule{r}
	}
	person := engine.Subject{Caller: engine.Principal{Tenant: "t", Name: "ana", Agent: "claude", Groups: []string{"team"}}}
	own := engine.Subject{Caller: engine.Principal{Tenant: "t", Name: "agent:t/a1", Agent: "agent"}, Chain: []engine.Principal{person.Caller}}
	foreign := engine.Subject{Caller: engine.Principal{Tenant: "t", Name: "agent:other/a1"}}
	for name, c := range map[string]struct {
		document engine.Document
		person   bool
		own      bool
	}{
		"nothing":                   {engine.Document{}, false, false},
		"default allow":             {engine.Document{Default: engine.DefaultAllow}, false, true},
		"default by_risk":           {engine.Document{Default: engine.DefaultByRisk}, false, true},
		"a pattern":                 {engine.Document{Rules: allow("wasm_*", engine.Match{})}, false, true},
		"a pattern for a caller":    {engine.Document{Rules: allow("wasm_model_*", engine.Match{Principal: []string{"*"}})}, false, true},
		"its name for every caller": {engine.Document{Rules: allow("wasm_model_ask", engine.Match{})}, false, true},
		"as tools have it":          {engine.Document{Rules: []engine.Rule{{Tool: "wasm_model_ask", Action: engine.ActionAllow}}}, false, true},
		"its name and callers":      {engine.Document{Rules: allow("wasm_model_ask", engine.Match{Principal: []string{"*"}})}, true, true},
		"its name and a group":      {engine.Document{Rules: allow("wasm_model_ask", engine.Match{Groups: []string{"team"}})}, true, false},
		"of another caller":         {engine.Document{Default: engine.DefaultAllow, Rules: allow("wasm_model_ask", engine.Match{Principal: []string{"ben"}})}, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.document.Name = "d"
			set, err := engine.Compile([]engine.Document{c.document}, engine.Options{SessionCap: 100, Times: engine.Times{Decide: time.Hour, Execute: time.Hour}})
			if err != nil {
				t.Fatal(err)
			}
			call := engine.Call{Server: "agents", Tool: "wasm_model_ask", Facts: engine.Facts{Status: engine.Callable, Category: "execute", Risk: "low"}}
			opens := func(s engine.Subject) (bool, engine.Decision) {
				call.Subject = s
				d := set.Decide(call)
				return d.Effect != engine.Deny, d
			}
			if got, d := opens(person); got != c.person || !got && !strings.Contains(d.Message, "only agents of the mesh") {
				t.Errorf("a person's call: %+v", d)
			}
			if got, d := opens(own); got != c.own {
				t.Errorf("an agent's call: %+v", d)
			}
			if got, d := opens(foreign); got && name != "its name and callers" {
				t.Errorf("the call of an agent of another tenant: %+v", d)
			}
			call.Tool = "wasm_agent_list"
			if got, _ := opens(person); got != (name == "default allow" || name == "default by_risk" || name == "a pattern" || name == "of another caller") {
				t.Errorf("another tool is opened: %v", got)
			}
		})
	}
}
