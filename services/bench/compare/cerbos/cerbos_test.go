// Package compare measures decisions of Cerbos. It uses the same rules as engine.BenchmarkDecideLikePeers of the policy
// service. It is a separate module, so that the project does not depend on Cerbos. The module's path begins with
// github.com/cerbos/cerbos because only packages below that path may import the Cerbos engine.
package compare

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	effectv1 "github.com/cerbos/cerbos/api/genpb/cerbos/effect/v1"
	enginev1 "github.com/cerbos/cerbos/api/genpb/cerbos/engine/v1"
	"github.com/cerbos/cerbos/internal/compile"
	"github.com/cerbos/cerbos/internal/engine"
	"github.com/cerbos/cerbos/internal/ruletable"
	"github.com/cerbos/cerbos/internal/schema"
	"github.com/cerbos/cerbos/internal/storage/disk"
	"google.golang.org/protobuf/types/known/structpb"
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

func BenchmarkCerbos(b *testing.B) {
	for _, n := range sizes {
		for _, conditional := range []bool{false, true} {
			b.Run(name(n, conditional), func(b *testing.B) { benchCerbos(b, n, conditional) })
		}
	}
}

func benchCerbos(b *testing.B, n int, conditional bool) {
	b.Helper()
	var text strings.Builder
	text.WriteString("apiVersion: api.cerbos.dev/v1\nresourcePolicy:\n  version: default\n  resource: files\n  rules:\n")
	for i := range n {
		fmt.Fprintf(&text, "    - {actions: [%s], effect: EFFECT_ALLOW, roles: [developers]", tool(i))
		if conditional {
			text.WriteString(`, condition: {match: {expr: 'R.attr.amount <= 100 && R.attr.to.endsWith(".example")'}}`)
		}
		text.WriteString("}\n")
	}
	dir := b.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "files.yaml"), []byte(text.String()), 0o600); err != nil {
		b.Fatal(err)
	}
	evaluator := cerbos(b, dir)
	input := []*enginev1.CheckInput{{
		RequestId: "1", Principal: &enginev1.Principal{Id: "laptop", Roles: []string{"developers"}}, Actions: []string{tool(n / 2)},
		Resource: &enginev1.Resource{Kind: "files", Id: "x", Attr: map[string]*structpb.Value{
			"amount": structpb.NewNumberValue(99.5), "to": structpb.NewStringValue("a.example"), "path": structpb.NewStringValue("/srv/docs/a"),
		}},
	}}
	b.ReportAllocs()
	for b.Loop() {
		out, err := evaluator.Check(b.Context(), input)
		if err != nil || out[0].GetActions()[tool(n/2)].GetEffect() != effectv1.Effect_EFFECT_ALLOW {
			b.Fatal(out, err)
		}
	}
}

func cerbos(b *testing.B, dir string) *engine.Engine {
	b.Helper()
	ctx := b.Context()
	store, err := disk.NewStore(ctx, &disk.Conf{Directory: dir})
	if err != nil {
		b.Fatal(err)
	}
	compiler, err := compile.NewManager(ctx, store)
	if err != nil {
		b.Fatal(err)
	}
	table, err := ruletable.NewRuleTableFromLoader(ctx, compiler)
	if err != nil {
		b.Fatal(err)
	}
	schemas := schema.NewFromConf(ctx, store, schema.NewConf(schema.EnforcementNone))
	manager, err := ruletable.NewRuleTableManager(table, compiler, schemas)
	if err != nil {
		b.Fatal(err)
	}
	return engine.NewEphemeral(nil, manager, schemas)
}
