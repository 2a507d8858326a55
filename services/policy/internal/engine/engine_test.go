package engine_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
)

var options = engine.Options{SessionCap: 10, Times: engine.Times{Decide: 15 * time.Minute, Execute: 5 * time.Minute}}

func compile(t testing.TB, documents ...engine.Document) *engine.Set {
	t.Helper()
	set, err := engine.Compile(documents, options)
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// callable contains the facts about a tool that may be called and has no classification.
var callable = engine.Facts{Status: engine.Callable}

func person(name string) engine.Subject {
	return engine.Subject{Caller: engine.Principal{Tenant: "default", Name: name}}
}

func TestZeroValues_Deny(t *testing.T) {
	t.Parallel()
	all := compile(t, engine.Document{Name: "all", Default: engine.DefaultAllow})
	tests := []struct {
		name string
		set  *engine.Set
		call engine.Call
		want engine.Code
	}{
		{"no documents", compile(t), engine.Call{Facts: callable, Server: "s", Tool: "t", Subject: person("x")}, engine.DeniedByDefault},
		{"no call", all, engine.Call{}, engine.Unauthenticated},
		{"no caller", all, engine.Call{Facts: callable, Server: "s", Tool: "t"}, engine.Unauthenticated},
		{"no tenant", all, engine.Call{Facts: callable, Server: "s", Tool: "t", Subject: engine.Subject{Caller: engine.Principal{Name: "x"}}}, engine.Unauthenticated},
		{"no server", all, engine.Call{Facts: callable, Tool: "t", Subject: person("x")}, engine.ToolUnknown},
		{"no tool", all, engine.Call{Facts: callable, Server: "s", Subject: person("x")}, engine.ToolNameInvalid},
		{"a tool of 129 letters", all, engine.Call{Facts: callable, Server: "s", Tool: strings.Repeat("t", 129), Subject: person("x")}, engine.ToolNameInvalid},
		{"a server of 33 letters", all, engine.Call{Facts: callable, Server: strings.Repeat("s", 33), Tool: "t", Subject: person("x")}, engine.ToolUnknown},
		{
			"a chain of five", all,
			engine.Call{Facts: callable, Server: "s", Tool: "t", Subject: engine.Subject{Caller: person("x").Caller, Chain: []engine.Principal{
				person("a").Caller, person("b").Caller, person("c").Caller, person("d").Caller, person("e").Caller,
			}}},
			engine.Unauthenticated,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(engine.Decision{Code: tt.want}, tt.set.Decide(tt.call)); diff != "" {
				t.Errorf("Decide (-want +got):\n%s", diff)
			}
			if got := tt.set.Visible(tt.call.Subject, tt.call.Server, tt.call.Tool, callable); got != (engine.Visibility{Code: tt.want}) {
				t.Errorf("Visible = %+v, want hidden with %s", got, tt.want)
			}
		})
	}
	if d := (engine.Decision{}); d.Effect != engine.Deny {
		t.Error("the zero decision does not deny")
	}
}

func TestCompile_FailsForInvalidDocuments(t *testing.T) {
	t.Parallel()
	rule := engine.Rule{Name: "r", Action: engine.ActionDeny}
	tests := []struct {
		name      string
		documents []engine.Document
		options   engine.Options
		want      string
	}{
		{"no session cap", nil, engine.Options{}, "a session cap of 0 is not between 1 and 1000000"},
		{"a huge session cap", nil, engine.Options{SessionCap: 1_000_001}, "a session cap of 1000001 is not between 1 and 1000000"},
		{"no times", nil, engine.Options{SessionCap: 1}, "the times to decide and to execute must be positive"},
		{"a document without a name", []engine.Document{{}}, options, `document "": name: is required`},
		{
			"two documents of one name", []engine.Document{{Name: "a"}, {Name: "a"}}, options,
			`two documents have the name "a"`,
		},
		{
			"two rules of one name", []engine.Document{{Name: "a", Rules: []engine.Rule{rule, rule}}}, options,
			`document "a": rule "r": name: another rule has the name "r"; give each rule a different name`,
		},
		{
			"an entry with a name and a match",
			[]engine.Document{{Name: "a", Rules: []engine.Rule{{
				Name: "r", Tool: "t", Match: engine.Match{Agent: []string{"*"}}, Action: engine.ActionDeny,
			}}}}, options,
			"document \"a\": rule \"tools.t\": name: an entry under tools has no name\n" +
				`document "a": rule "tools.t": match: an entry under tools matches only its tool; use rules`,
		},
		{
			"unknown values",
			[]engine.Document{{Name: "a", Default: 9, Rules: []engine.Rule{{
				Name: "r", Action: 9, Limits: []engine.RateLimit{{Max: 1, Window: time.Second, Per: []engine.Dimension{0, 9}}},
			}}}}, options,
			"document \"a\": default: Default(9) is unknown\n" +
				"document \"a\": rule \"r\": action: Action(9) is unknown\n" +
				"document \"a\": rule \"r\": rate_limit[0].per[0]: none is unknown\n" +
				`document "a": rule "r": rate_limit[0].per[1]: Dimension(9) is unknown`,
		},
		{
			"a group that would be empty",
			[]engine.Document{{Name: "a", Rules: []engine.Rule{{
				Name: "r", Action: engine.ActionRequireApproval, Approvers: []string{""}, Quorum: -1,
			}}}}, options,
			"document \"a\": rule \"r\": quorum: -1 is not between 1 and 16\n" +
				`document "a": rule "r": approvers[0]: is not a group's name; use 1 to 128 bytes without control characters`,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			set, err := engine.Compile(tt.documents, tt.options)
			if err == nil || set != nil {
				t.Fatalf("Compile = %v, %v, want no set and an error", set, err)
			}
			if diff := cmp.Diff(tt.want, err.Error()); diff != "" {
				t.Errorf("Compile (-want +got):\n%s", diff)
			}
		})
	}
}

func TestRevision_DependsOnlyOnTheContent(t *testing.T) {
	t.Parallel()
	build := func(change func(*engine.Document)) string {
		d := engine.Document{Name: "d", Server: "s", Default: engine.DefaultDeny, Rules: []engine.Rule{
			{Tool: "t", Action: engine.ActionAllow, Limits: []engine.RateLimit{
				{Max: 1, Window: time.Second, Per: []engine.Dimension{engine.PerTool, engine.PerAgent}},
				{Max: 2, Window: time.Minute, Per: []engine.Dimension{engine.PerTool}},
			}},
			{Name: "r", Match: engine.Match{Tool: []string{"a", "b"}}, Action: engine.ActionRequireApproval, Approvers: []string{"x", "y"}},
		}}
		change(&d)
		return compile(t, d, engine.Document{Name: "other"}).Revision()
	}
	base := build(func(*engine.Document) {})
	if len(base) != 64 || strings.Trim(base, "0123456789abcdef") != "" {
		t.Errorf("Revision() = %q, want 64 hex digits", base)
	}
	same := map[string]func(*engine.Document){
		"rules in another order":      func(d *engine.Document) { d.Rules[0], d.Rules[1] = d.Rules[1], d.Rules[0] },
		"patterns in another order":   func(d *engine.Document) { d.Rules[1].Match.Tool = []string{"b", "a"} },
		"groups in another order":     func(d *engine.Document) { d.Rules[1].Approvers = []string{"y", "x"} },
		"a quorum written out":        func(d *engine.Document) { d.Rules[1].Quorum = 1 },
		"limits in another order":     func(d *engine.Document) { l := d.Rules[0].Limits; l[0], l[1] = l[1], l[0] },
		"dimensions in another order": func(d *engine.Document) { p := d.Rules[0].Limits[0].Per; p[0], p[1] = p[1], p[0] },
	}
	for name, change := range same {
		if got := build(change); got != base {
			t.Errorf("%s: another revision", name)
		}
	}
	other := map[string]func(*engine.Document){
		"name":      func(d *engine.Document) { d.Name = "e" },
		"server":    func(d *engine.Document) { d.Server = "" },
		"default":   func(d *engine.Document) { d.Default = engine.DefaultAllow },
		"entry":     func(d *engine.Document) { d.Rules[0].Tool = "u" },
		"as a rule": func(d *engine.Document) { d.Rules[0].Tool, d.Rules[0].Name = "", "t" },
		"action":    func(d *engine.Document) { d.Rules[0].Action = engine.ActionHide },
		"reason":    func(d *engine.Document) { d.Rules[0].Reason = "x" },
		"max":       func(d *engine.Document) { d.Rules[0].Limits[0].Max++ },
		"window":    func(d *engine.Document) { d.Rules[0].Limits[0].Window++ },
		"per":       func(d *engine.Document) { d.Rules[0].Limits[0].Per[0] = engine.PerServer },
		"approvers": func(d *engine.Document) { d.Rules[1].Approvers = []string{"x"} },
		"quorum":    func(d *engine.Document) { d.Rules[1].Quorum = 2 },
		"decide":    func(d *engine.Document) { d.Rules[1].DecideWithin = time.Hour },
		"execute":   func(d *engine.Document) { d.Rules[1].ExecuteWithin = time.Hour },
		"grant": func(d *engine.Document) {
			d.Rules[1].Grant = engine.Grant{Calls: 2, Within: time.Hour, Critical: true}
		},
		"calls of a grant": func(d *engine.Document) {
			d.Rules[1].Grant = engine.Grant{Calls: 3, Within: time.Hour, Critical: true}
		},
		"time of a grant": func(d *engine.Document) {
			d.Rules[1].Grant = engine.Grant{Calls: 2, Within: time.Minute, Critical: true}
		},
		"a grant's where": func(d *engine.Document) {
			d.Rules[1].Grant = engine.Grant{Calls: 2, Within: time.Hour, Critical: true, Where: "args.n == 1"}
		},
		"and another": func(d *engine.Document) {
			d.Rules[1].Grant = engine.Grant{Calls: 2, Within: time.Hour, Critical: true, Where: "args.n == 2"}
		},
		"when":             func(d *engine.Document) { d.Rules[1].When = "args.n == 1" },
		"extra args":       func(d *engine.Document) { d.Rules[1].When, d.Rules[1].ExtraArgs = "args.n == 1", true },
		"noted extra args": func(d *engine.Document) { d.Rules[1].When = "args.n == 1 // extra_args: allow" },
		"otherwise":        func(d *engine.Document) { d.Rules[1].When, d.Rules[1].Otherwise = "args.n == 1", true },
		"idempotent":       func(d *engine.Document) { d.Rules[1].Idempotent = true },
		"another's":        func(d *engine.Document) { d.Rules[0].Idempotent = true },
		"max_age":          func(d *engine.Document) { d.Rules[1].ApproveWith.MaxAge = time.Minute },
		"acr":              func(d *engine.Document) { d.Rules[1].ApproveWith.ACR = []string{"a"} },
		"another acr":      func(d *engine.Document) { d.Rules[1].ApproveWith.ACR = []string{"b"} },
		"no groups":        func(d *engine.Document) { d.Rules[1].Approvers = nil },
		"and self_confirm": func(d *engine.Document) { d.Rules[1].Approvers, d.Rules[1].SelfConfirm = nil, true },
		"key of a match": func(d *engine.Document) {
			d.Rules[1].Match = engine.Match{Agent: []string{"a", "b"}}
		},
		"no rules": func(d *engine.Document) { d.Rules = nil },
	}
	seen := map[string]string{base: "nothing"}
	for name, change := range other {
		got := build(change)
		if earlier, taken := seen[got]; taken {
			t.Errorf("changing %s gives the revision of changing %s", name, earlier)
		}
		seen[got] = name
	}
}

func TestExplain_ListsEveryCheck(t *testing.T) {
	t.Parallel()
	set := compile(t,
		engine.Document{Name: "b", Server: "s*", Rules: []engine.Rule{
			{Tool: "t", Action: engine.ActionAllow},
			{Name: "all", Action: engine.ActionNone, Limits: []engine.RateLimit{
				{Max: 1, Window: time.Second, Per: []engine.Dimension{engine.PerTool}},
			}},
		}},
		engine.Document{Name: "a", Rules: []engine.Rule{{
			Name: "r", Action: engine.ActionDeny, Match: engine.Match{
				Tool: []string{"x", "t"}, Server: []string{"s"}, Agent: []string{"dev"}, Principal: []string{"ana"},
				Groups: []string{"ops"}, Tenant: []string{"acme"},
			},
		}}},
	)
	call := engine.Call{Facts: callable, Server: "s", Tool: "t", Subject: engine.Subject{
		Caller: engine.Principal{Tenant: "default", Name: "bot", Agent: "dev", Groups: []string{"one", "two"}},
		Chain:  []engine.Principal{{Tenant: "acme", Name: "ana", Groups: []string{"ops"}}},
	}}
	got := set.Explain(call)
	home := engine.Check{Name: "document.server", Want: "s*", Got: "s", Held: true}
	shared := []engine.Check{{Name: "tool", Want: "x, t", Got: "t", Held: true}, {Name: "server", Want: "s", Got: "s", Held: true}}
	want := []engine.ConsideredRule{
		{Rule: engine.RuleRef{Document: "a", Rule: "r"}, Action: engine.ActionDeny, Checks: append(shared[:2:2],
			engine.Check{Name: "agent", Want: "dev", Got: "dev", Held: true},
			engine.Check{Name: "principal", Want: "ana", Got: "bot"},
			engine.Check{Name: "groups", Want: "ops", Got: "one, two"},
			engine.Check{Name: "tenant", Want: "acme", Got: "default"})},
		{Rule: engine.RuleRef{Document: "a", Rule: "r"}, Action: engine.ActionDeny, ChainIndex: 1, Checks: append(shared[:2:2],
			engine.Check{Name: "agent", Want: "dev", Got: ""},
			engine.Check{Name: "principal", Want: "ana", Got: "ana", Held: true},
			engine.Check{Name: "groups", Want: "ops", Got: "ops", Held: true},
			engine.Check{Name: "tenant", Want: "acme", Got: "acme", Held: true})},
		{Rule: engine.RuleRef{Document: "b", Rule: "all"}, Matched: true, Checks: []engine.Check{home}},
		{Rule: engine.RuleRef{Document: "b", Rule: "all"}, Matched: true, Checks: []engine.Check{home}, ChainIndex: 1},
		{Rule: engine.RuleRef{Document: "b", Rule: "tools.t"}, Matched: true, Action: engine.ActionAllow, Checks: []engine.Check{
			home, {Name: "tool", Want: "t", Got: "t", Held: true},
		}},
		{Rule: engine.RuleRef{Document: "b", Rule: "tools.t"}, Matched: true, Action: engine.ActionAllow, ChainIndex: 1, Checks: []engine.Check{
			home, {Name: "tool", Want: "t", Got: "t", Held: true},
		}},
	}
	if diff := cmp.Diff(want, got.Rules); diff != "" {
		t.Errorf("Explain (-want +got):\n%s", diff)
	}
}

func TestDecide_DeniesWhenTooManyLimitsApply(t *testing.T) {
	t.Parallel()
	d := engine.Document{Name: "d", Default: engine.DefaultAllow}
	for i := range engine.MaxLimits / 2 {
		d.Rules = append(d.Rules, engine.Rule{Name: fmt.Sprintf("r%d", i), Limits: []engine.RateLimit{
			{Max: 1, Window: time.Second, Per: []engine.Dimension{engine.PerSession}},
		}})
	}
	call := engine.Call{Facts: callable, Server: "s", Tool: "t", Subject: person("x")}
	if got := compile(t, d).Decide(call); got.Effect != engine.Allow || len(got.Limits) != engine.MaxLimits {
		t.Errorf("Decide with %d limits = %+v, want all of them", engine.MaxLimits, got)
	}
	d.Rules[0].Limits = append(d.Rules[0].Limits, engine.RateLimit{
		Max: 1, Window: time.Minute, Per: []engine.Dimension{engine.PerTenant},
	})
	got := compile(t, d).Decide(call)
	if got.Effect != engine.Deny || got.Code != engine.DeniedByRule || len(got.Limits) != 0 || got.Message == "" {
		t.Errorf("Decide with %d limits = %+v, want a denial", engine.MaxLimits+1, got)
	}
}

func TestSet_DoesNotChangeWithItsInputs(t *testing.T) {
	t.Parallel()
	d := engine.Document{Name: "d", Rules: []engine.Rule{{
		Name: "r", Match: engine.Match{Tool: []string{"t"}}, Action: engine.ActionRequireApproval, Approvers: []string{"a"},
		Limits: []engine.RateLimit{{Max: 1, Window: time.Second, Per: []engine.Dimension{engine.PerTool}}},
	}}}
	set := compile(t, d)
	call := engine.Call{Facts: callable, Server: "s", Tool: "t", Subject: person("x")}
	before := set.Explain(call)
	d.Rules[0].Match.Tool[0], d.Rules[0].Approvers[0] = "z", "z"
	d.Rules[0].Limits[0].Per[0], d.Rules[0].Action = engine.PerServer, engine.ActionDeny
	before.Decision.Approval.Approvers[0] = "mine"
	after := set.Explain(call)
	before.Decision.Approval.Approvers[0] = "a"
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("a set changed with its documents or its answers (-before +after):\n%s", diff)
	}
}

func TestSet_IsSafeForConcurrentUse(t *testing.T) {
	t.Parallel()
	set := compile(t, entries(100)...)
	call := engine.Call{Facts: callable, Server: "claude-flow", Tool: "wasm_agent_tool_0", Subject: person("x")}
	want := set.Decide(call)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 200 {
				if diff := cmp.Diff(want, set.Decide(call)); diff != "" {
					t.Errorf("Decide changed (-want +got):\n%s", diff)
				}
				set.Explain(call)
				set.Visible(call.Subject, call.Server, call.Tool, callable)
			}
		})
	}
	wg.Wait()
}

func TestNames_AreParsedAndPrinted(t *testing.T) {
	t.Parallel()
	for _, name := range engine.Actions() {
		if a, ok := engine.ParseAction(name); !ok || a.String() != name {
			t.Errorf("ParseAction(%q) = %v, %t", name, a, ok)
		}
	}
	for _, name := range engine.Dimensions() {
		if d, ok := engine.ParseDimension(name); !ok || d.String() != name {
			t.Errorf("ParseDimension(%q) = %v, %t", name, d, ok)
		}
	}
	for _, name := range []string{"none", "", "Allow"} {
		if _, ok := engine.ParseAction(name); ok {
			t.Errorf("ParseAction(%q) succeeded", name)
		}
		if _, ok := engine.ParseDimension(name); ok {
			t.Errorf("ParseDimension(%q) succeeded", name)
		}
	}
	if got := engine.Effect(7).String(); got != "Effect(7)" {
		t.Errorf("String of an unknown effect = %s", got)
	}
}

// TestCompile_ExtraArgsBelongToTheirRule uses two rules with the same condition, one of which has extra_args. The test
// checks that a comment in the condition of the other rule does not have the effect of extra_args.
func TestCompile_ExtraArgsBelongToTheirRule(t *testing.T) {
	t.Parallel()
	set := compile(t, engine.Document{Name: "d", Rules: []engine.Rule{
		{Tool: "lenient", When: "args.a == 1", ExtraArgs: true, Action: engine.ActionAllow},
		{Tool: "strict", When: "args.a == 1 // extra_args: allow", Action: engine.ActionAllow},
	}})
	call := engine.Call{Server: "s", Subject: person("x"), Facts: callable, Params: `{"arguments":{"a":1,"A":2}}`}
	for tool, want := range map[string]engine.Effect{"lenient": engine.Allow, "strict": engine.Deny} {
		call.Tool = tool
		if d := set.Decide(call); d.Effect != want {
			t.Errorf("%s: %+v", tool, d)
		}
	}
}
