// Package opa measures decisions of OPA. It uses the same rules as engine.BenchmarkDecideLikePeers of the policy
// service. It is a separate module, so that the project does not depend on OPA.
package opa

import (
	"fmt"
	"strings"
	"testing"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/rego"
)

// sizes contains the numbers of rules to measure with. Each rule allows one tool, with or without a condition on two
// arguments. The measured call is allowed by the rule in the middle of the list.
var sizes = []int{1, 100, 10_000}

func tool(i int) string { return fmt.Sprintf("tool_%d", i) }

func name(n int, conditional bool) string {
	if conditional {
		return fmt.Sprintf("%d rules/condition", n)
	}
	return fmt.Sprintf("%d rules/plain", n)
}

func BenchmarkOPA(b *testing.B) {
	for _, n := range sizes {
		for _, conditional := range []bool{false, true} {
			b.Run(name(n, conditional), func(b *testing.B) { benchOPA(b, n, conditional) })
		}
	}
}

func benchOPA(b *testing.B, n int, conditional bool) {
	b.Helper()
	var text strings.Builder
	text.WriteString("package sluice\n\ndefault allow := false\n")
	for i := range n {
		fmt.Fprintf(&text, "allow if {\n\tinput.tool == %q\n\t\"developers\" in input.groups\n", tool(i))
		if conditional {
			text.WriteString("\tinput.args.amount <= 100\n\tendswith(input.args.to, \".example\")\n")
		}
		text.WriteString("}\n")
	}
	query, err := rego.New(rego.Query("data.sluice.allow"), rego.Module("sluice.rego", text.String())).PrepareForEval(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	input, err := ast.InterfaceToValue(map[string]any{
		"tool": tool(n / 2), "groups": []any{"developers"}, "args": map[string]any{"amount": 99.5, "to": "a.example", "path": "/srv/docs/a"},
	})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		out, err := query.Eval(b.Context(), rego.EvalParsedInput(input))
		if err != nil || !out.Allowed() {
			b.Fatal(out, err)
		}
	}
}
