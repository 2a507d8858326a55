package engine_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
)

// entries returns a document with n entries under tools. A third of them have a limit.
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
		call := engine.Call{Facts: callable, Server: "claude-flow", Tool: bb.tool, Subject: agent}
		b.Run(bb.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				set.Decide(call)
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
