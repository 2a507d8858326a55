package engine_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
)

// entries returns a document with n entries under tools. Every third entry has a limit.
func entries(n int) []engine.Document {
	d := engine.Document{Name: "bench", Server: "claude-flow", Default: engine.DefaultDeny}
	for i := range n {
		r := engine.Rule{Tool: fmt.Sprintf("wasm_agent_tool_%d", i), Action: engine.ActionAllow}
		if i%3 == 0 {
			r.Limits = []engine.RateLimit{{
				Max: 10, Window: time.Minute, Per: []engine.Dimension{engine.PerSession, engine.PerServer, engine.PerTool},
			}}
		}
		d.Rules = append(d.Rules, r)
	}
	return []engine.Document{d}
}

// conditional returns a document with n entries under tools that allow calls with a path below a directory. Three rules
// with conditions match each tool.
func conditional(n int) []engine.Document {
	d := entries(n)[0]
	for i := range d.Rules {
		d.Rules[i].When = `path.within(args.path, "/srv/docs")`
	}
	for i, when := range []string{`decimal(args.amount) > decimal("100")`, `args.to.endsWith(".example") && caller.agent == "dev"`} {
		d.Rules = append(d.Rules, engine.Rule{
			Name: fmt.Sprintf("deny%d", i), Match: engine.Match{Tool: []string{"wasm_*"}}, When: when, Otherwise: i == 1, Action: engine.ActionDeny,
		})
	}
	return []engine.Document{d}
}

func BenchmarkDecide(b *testing.B) {
	agent := engine.Subject{Caller: engine.Principal{
		Tenant: "default", Name: "laptop", Agent: "dev", Groups: []string{"developers"}, Session: "0123456789abcdef",
	}}
	patterned := entries(100)
	for i := range 10_000 {
		patterned[0].Rules = append(patterned[0].Rules, engine.Rule{
			Name: fmt.Sprintf("p%d", i), Match: engine.Match{Tool: []string{fmt.Sprintf("create_%d_*", i)}}, Action: engine.ActionDeny,
		})
	}
	for _, bb := range []struct {
		name      string
		documents []engine.Document
		tool      string
	}{
		{"1 entry/conditional", conditional(1), "wasm_agent_tool_0"},
		{"10000 entries/conditional", conditional(10_000), "wasm_agent_tool_1"},
		{"1 entry/limited", entries(1), "wasm_agent_tool_0"},
		{"100 entries/allow", entries(100), "wasm_agent_tool_1"},
		{"100 entries/limited", entries(100), "wasm_agent_tool_0"},
		{"100 entries/default", entries(100), "wasm_agent_unknown"},
		{"10000 entries/allow", entries(10_000), "wasm_agent_tool_1"},
		{"10000 entries/limited", entries(10_000), "wasm_agent_tool_0"},
		{"10000 entries/default", entries(10_000), "wasm_agent_unknown"},
		{"10000 patterns/deny", patterned, "create_77_x"},
	} {
		set, err := engine.Compile(bb.documents, engine.Options{SessionCap: 10, Times: engine.Times{Decide: 15 * time.Minute, Execute: 5 * time.Minute}})
		if err != nil {
			b.Fatal(err)
		}
		call := engine.Call{Facts: callable, Server: "claude-flow", Tool: bb.tool, Subject: agent, Params: `{"name":"t","arguments":{"path":"/srv/docs/a","amount":99.5,"to":"a.example"}}`}
		b.Run(bb.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				set.Decide(call)
			}
			if strings.Contains(bb.name, "conditional") && set.Decide(call).Effect != engine.Allow {
				b.Errorf("the call is not allowed: %+v", set.Decide(call))
			}
		})
	}
}

func BenchmarkCompile(b *testing.B) {
	documents := entries(10_000)
	for b.Loop() {
		if _, err := engine.Compile(documents, engine.Options{SessionCap: 10, Times: engine.Times{Decide: 15 * time.Minute, Execute: 5 * time.Minute}}); err != nil {
			b.Fatal(err)
		}
	}
}
