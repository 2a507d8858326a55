package engine

import (
	"fmt"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/policy/internal/condition"
)

const benchParams = `{"name":"t","arguments":{"path":"/srv/docs/a","amount":99.5,"to":"a.example"}}`

// BenchmarkDecideParsed measures decisions on a call that three rules with conditions match. The arguments of the call
// are parsed before the measurement. BenchmarkDecide measures the same decisions including the parsing.
func BenchmarkDecideParsed(b *testing.B) {
	for _, n := range []int{1, 100, 10_000} {
		b.Run(fmt.Sprintf("%d entries", n), func(b *testing.B) {
			benchDecide(b, benchSet(b, n), benchCall(), true)
		})
	}
}

// BenchmarkDecideLikePeers measures the same decisions that the benchmarks in services/bench/compare measure for Cerbos
// and OPA. Each rule allows one tool, with or without a condition on two arguments. Cerbos and OPA receive arguments
// that are already parsed. Therefore the case "parsed" uses parsed arguments too.
func BenchmarkDecideLikePeers(b *testing.B) {
	for _, n := range []int{1, 100, 10_000} {
		for _, bb := range []struct {
			name, when string
			parsed     bool
		}{{name: "plain"}, {"condition, parsed", likePeers, true}, {"condition", likePeers, false}} {
			b.Run(fmt.Sprintf("%d rules/%s", n, bb.name), func(b *testing.B) {
				d := Document{Name: "bench", Server: "files", Default: DefaultDeny}
				for i := range n {
					d.Rules = append(d.Rules, Rule{
						Name: fmt.Sprintf("rule_%d", i), Match: Match{Tool: []string{fmt.Sprintf("tool_%d", i)}, Groups: []string{"developers"}}, Action: ActionAllow, When: bb.when,
					})
				}
				call := benchCall()
				call.Server, call.Tool = "files", fmt.Sprintf("tool_%d", n/2)
				benchDecide(b, compileForBench(b, d), call, bb.parsed)
			})
		}
	}
}

const likePeers = `decimal(args.amount) <= 100 && args.to.endsWith(".example")`

// benchDecide measures how long a decision on a call takes. The call must be allowed.
func benchDecide(b *testing.B, set *Set, call Call, parsed bool) {
	b.Helper()
	arguments, err := condition.ParseArguments(call.Params)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		own := call
		if parsed {
			own.evaluations = &evaluations{input: own.conditionInput()}
			own.evaluations.input.Args = arguments
		}
		if d := set.Decide(own); d.Effect != Allow {
			b.Fatalf("the call is not allowed: %+v", d)
		}
	}
}

// BenchmarkParseArguments measures how long it takes to parse the arguments that BenchmarkDecideParsed uses.
func BenchmarkParseArguments(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if _, err := condition.ParseArguments(benchParams); err != nil {
			b.Fatal(err)
		}
	}
}

func benchCall() Call {
	return Call{
		Facts: Facts{Status: Callable}, Server: "claude-flow", Tool: "wasm_agent_tool_0", Params: benchParams,
		Subject: Subject{Caller: Principal{
			Tenant: "default", Name: "laptop", Agent: "dev", Groups: []string{"developers"}, Session: "0123456789abcdef",
		}},
	}
}

// benchSet returns a set with n entries under tools that allow calls with a path below a directory, and two rules that
// deny calls. All entries and rules have conditions.
func benchSet(b *testing.B, n int) *Set {
	b.Helper()
	d := Document{Name: "bench", Server: "claude-flow", Default: DefaultDeny}
	for i := range n {
		d.Rules = append(d.Rules, Rule{Tool: fmt.Sprintf("wasm_agent_tool_%d", i), Action: ActionAllow, When: `path.within(args.path, "/srv/docs")`})
	}
	d.Rules = append(d.Rules,
		Rule{Name: "amount", Match: Match{Tool: []string{"wasm_*"}}, When: `decimal(args.amount) > decimal("100")`, Action: ActionDeny},
		Rule{Name: "to", Match: Match{Tool: []string{"wasm_*"}}, When: `args.to.endsWith(".example") && caller.agent == "dev"`, Otherwise: true, Action: ActionDeny})
	return compileForBench(b, d)
}

func compileForBench(b *testing.B, d Document) *Set {
	b.Helper()
	set, err := Compile([]Document{d}, Options{SessionCap: 10, Times: Times{Decide: 15 * time.Minute, Execute: 5 * time.Minute}})
	if err != nil {
		b.Fatal(err)
	}
	return set
}
