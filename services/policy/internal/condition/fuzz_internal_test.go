package condition

import (
	"testing"
	"time"

	"cel.dev/cel-go/cel"
)

var fuzzedConditions = []string{
	`args.draft == true`, `args.?force.orValue(false) == false`, `args.to.all(x, x.endsWith(".example"))`, `args["a/b"].c[1] == null`,
	`args.all(k, k in ["to", "cc"])`, `args.b ? args.n == 1 : args.n == 2`, `decimal(args.n) > decimal("100") && decimal(args.n) <= 100.5`,
	`decimal("1e3") == decimal(args.n)`, `decimal(decimal(args.n)) < 3`, `path.within(args.path, "/srv") || path.ext(args.path) == ".txt"`,
	`url.under(args.url, "https://ok.example/v1") && url.port(args.url) == 443`, `!ip.in(args.ip, "10.0.0.0/8")`, `email.domain(args.to[0]) == "ok.example"`,
	`args.s.matches("^[a-z]+$")`, `caller.agent == "dev" && "ops" in caller.groups`, `caller.chain.exists(p, p.subject == "ana")`,
	`tool.known && tool.risk == "low"`, `now.getHours("Europe/Berlin") < 6`, `now < timestamp("2030-01-31T00:00:00Z")`,
	`args.a.all(x, args.b.exists(y, x == y))`, `[1, 2, args.n].exists(x, x == 2)`, `{"a": args.n}.a == 1`, `size(args.s) < 3 && args.s.contains("a")`, `true`, `1 ==`, ``,
}

var fuzzedParams = []string{
	"", `{}`, `{"arguments":{"draft":true,"n":5,"path":"/srv/a.txt","url":"https://ok.example/v1/x","ip":"10.1.2.3","to":["a@ok.example"],"s":"ab"}}`,
	`{"arguments":{"n":99.5,"b":true,"a":[1,2],"path":"/srv/../etc","to":"x"}}`, `{"arguments":{"n":1,"n":2}}`, `{"arguments":{"N":1,"n":1}}`,
	`{"arguments":{"n":18446744073709551615,"s":null,"a":{"b":1},"a/b":{"c":[0,null]}}}`, `{"arguments":[1]}`, `{"name":"x","name":"y","arguments":{}}`, `{"arguments":{"n":1e400}}`, `[`,
}

// FuzzCompile compiles conditions and evaluates them for arguments. Nothing may panic, and Evaluate may return an error
// only if the result is Failed. The result must be the same with cost tracking, without it, and with a trace. The cost
// must be bounded even if it is not tracked.
func FuzzCompile(f *testing.F) {
	for i, text := range fuzzedConditions {
		for j := range 2 {
			f.Add(text, fuzzedParams[(i+5*j)%len(fuzzedParams)])
		}
		f.Add(text, fuzzedParams[2])
		f.Add(text, fuzzedParams[3])
	}
	f.Fuzz(func(t *testing.T, text, params string) {
		c, err := Compile(text)
		if err != nil {
			if c != nil || err.Error() == "" {
				t.Fatalf("%q: %v, %v", text, c, err)
			}
			return
		}
		in := Input{Server: "s", Tool: "t", Method: "tools/call", Caller: Caller{Subject: "ana", Tenant: "default", Groups: []string{"ops"}}, Now: time.Unix(1e9, 0)}
		in.Chain = []Caller{{Subject: "bo", Agent: "dev"}}
		in.Args, in.ArgsError = ParseArguments(params)
		checkEvaluations(t, c, &in)
		for _, unknown := range []Variables{VariableArgs | VariableNow, VariableTool} {
			in.Unknown = unknown
			if result, err := c.Evaluate(&in); (err != nil) != (result == Failed) || c.variables&unknown == 0 && result == Unknown {
				t.Fatalf("%q with unknown variables: %v, %v", text, result, err)
			}
		}
	})
}

func checkEvaluations(t *testing.T, c *Condition, in *Input) {
	t.Helper()
	result, err := c.Evaluate(in)
	if (err != nil) != (result == Failed) || result == Unknown {
		t.Fatalf("%v, %v", result, err)
	}
	if explained := c.Explain(in); explained.Result != result || (explained.Err != nil) != (err != nil) {
		t.Fatalf("the explanation is %+v, and the result %v, %v", explained, result, err)
	}
	if c.checkKeys(in) != nil {
		return
	}
	env, err := environment()
	if err != nil {
		t.Fatal(err)
	}
	tracked, err := newProgram(env, c.ast, cel.CostTracking(costEstimator{}))
	if err != nil {
		t.Fatal(err)
	}
	out, details, trackedErr := tracked.Eval(&activation{Input: in})
	cost := *details.ActualCost()
	program, err := c.programFor(in)
	switch {
	case err != nil:
		t.Fatal(err)
	case program != c.program && cost > maxCost:
		if result != Failed {
			t.Fatalf("%v although the cost is %d", result, cost)
		}
	case program == c.program && cost > 2*maxUntracked:
		t.Fatalf("the cost is %d, and is not tracked", cost)
	case (trackedErr != nil) != (result == Failed) || trackedErr == nil && out.Value() != (result == True):
		t.Fatalf("%v; with costs %v, %v", result, out, trackedErr)
	}
}

// TestCompile_CountsCalls checks how many function calls Compile counts in a condition. The more calls a condition has,
// the shorter its params must be if the cost of its evaluation is not to be computed.
func TestCompile_CountsCalls(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{
		`true`: 0, `args.a == 1`: 1, `args.a == 1 && args.b == 2`: 3, `args.a.matches("^a$")`: matchCalls, `!args.a.matches("^a$")`: matchCalls + 1,
		`args.a.all(x, x == 1)`: -1, `args.a == 1 || args.a.exists(x, x == 1)`: -1,
	} {
		c, err := Compile(text)
		if err != nil {
			t.Fatal(err)
		}
		if c.calls != want {
			t.Errorf("%s: %d calls; want %d", text, c.calls, want)
		}
	}
}

// TestSizeOf_CountsKeysAndValues checks the results of sizeOf. The costs of comparisons are computed from these sizes.
func TestSizeOf_CountsKeysAndValues(t *testing.T) {
	t.Parallel()
	for params, want := range map[string]uint64{
		`{}`: 10, `{"a":"bcd"}`: 10 + 1 + 3, `{"a":[1,"bc"]}`: 10 + 1 + 10 + 10 + 2, `{"ab":{"c":null}}`: 10 + 2 + 10 + 1 + 10,
	} {
		args, err := ParseArguments(`{"arguments":` + params + `}`)
		if err != nil {
			t.Fatal(err)
		}
		if got := sizeOf(args.values, 1000); got != want {
			t.Errorf("%s: %d; want %d", params, got, want)
		}
	}
}
