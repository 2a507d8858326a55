package engine_test

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
)

// Case X4. TestAccess_CoversEveryAllowedCall checks that CouldAllow is true if any call is allowed or requires
// approval, and that HidesNone is false if any tool is hidden.
func TestAccess_CoversEveryAllowedCall(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		set, call := drawSet(t), drawCall(t)
		reach := set.Access(call.Subject, call.Server)
		if call.Method != "" && set.Decide(call).Effect != engine.Deny && !reach.CouldAllow {
			t.Fatalf("%s is allowed, but CouldAllow is false", call.Method)
		}
		call.Method = ""
		for _, tool := range append(someTools, "x", "tx", "xu", "t-u", "something-else") {
			call.Tool = tool
			d := set.Decide(call)
			if d.Effect != engine.Deny && !reach.CouldAllow {
				t.Fatalf("%s is decided as %s by %s, but CouldAllow is false", tool, d.Effect, d.Rule)
			}
			if d.Hidden && reach.HidesNone {
				t.Fatalf("%s is hidden, but HidesNone is true", tool)
			}
			if set.Visible(call.Subject, call.Server, tool, call.Facts).Visible && !reach.CouldList {
				t.Fatalf("%s is listed, but CouldList is false", tool)
			}
		}
	})
}

// Case X4. TestAccess_IsExactWhenToolsAreNamed uses documents without patterns and conditions. It checks that
// CouldAllow is false if and only if calls to every tool are denied. Some of the callers have a delegation chain.
func TestAccess_IsExactWhenToolsAreNamed(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		documents, call := drawDocuments(t, "d"), drawCall(t)
		for i := range documents {
			documents[i].Default = engine.Default(rapid.IntRange(0, 1).Draw(t, "none or deny") * int(engine.DefaultDeny))
			for j := range documents[i].Rules {
				r := &documents[i].Rules[j]
				removeCondition(r) // conditions may depend on each other
				if r.Tool == "" {
					r.Match.Category, r.Match.Risk, r.Match.Tags, r.Match.Annotations = nil, nil, nil, nil
					r.Match.Method, r.Match.Prompt, r.Match.URI = nil, nil, nil
					r.Match.Tool = []string{rapid.SampledFrom(someTools).Draw(t, "named")}
				}
			}
			removeTwins(&documents[i])
		}
		set, err := engine.Compile(documents, options)
		if err != nil {
			t.Fatal(err)
		}
		passes := false
		call.Method = ""
		for _, tool := range someTools {
			call.Tool = tool
			passes = passes || set.Decide(call).Effect != engine.Deny
		}
		if reach := set.Access(call.Subject, call.Server); reach.CouldAllow != passes {
			t.Fatalf("CouldAllow is %t, but some call is allowed: %t", reach.CouldAllow, passes)
		}
	})
}

// A rule allows the caller some tools, and another rule allows the same tools to the principal that started the caller.
// CouldAllow is true. If no rule allows the tools to that principal, CouldAllow is false.
func TestAccess_CouldAllowForTheWholeChain(t *testing.T) {
	t.Parallel()
	rule := func(name, principal string) engine.Rule {
		return engine.Rule{Name: name, Action: engine.ActionAllow, Match: engine.Match{Tool: []string{"x*"}, Principal: []string{principal}}}
	}
	set := compile(t, engine.Document{Name: "d", Default: engine.DefaultDeny, Rules: []engine.Rule{rule("a", "bob"), rule("b", "ana")}})
	subject := engine.Subject{Caller: engine.Principal{Tenant: "acme", Name: "ana"}, Chain: []engine.Principal{{Tenant: "acme", Name: "bob"}}}
	if !set.Access(subject, "s").CouldAllow {
		t.Error("CouldAllow is false")
	}
	subject.Chain[0].Name = "eve"
	if set.Access(subject, "s").CouldAllow {
		t.Error("CouldAllow is true although no rule allows calls of one principal")
	}
}

func TestAccess_CouldAllow(t *testing.T) {
	t.Parallel()
	rule := func(action engine.Action, tools ...string) engine.Rule {
		return engine.Rule{Action: action, Match: engine.Match{Tool: tools}}
	}
	named := func(rules ...engine.Rule) []engine.Rule {
		for i := range rules {
			rules[i].Name = fmt.Sprintf("r%d", i)
		}
		return rules
	}
	tests := []struct {
		name      string
		fallback  engine.Default
		rules     []engine.Rule
		some      bool
		hidesNone bool
	}{
		{"no rule matches", engine.DefaultNone, nil, false, true},
		{"denied by default", engine.DefaultDeny, nil, false, true},
		{"allowed by default", engine.DefaultAllow, nil, true, true},
		{"all is denied by a rule", engine.DefaultAllow, named(rule(engine.ActionDeny)), false, true},
		{"all is denied by a pattern", engine.DefaultAllow, named(rule(engine.ActionDeny, "*")), false, true},
		{"all is hidden", engine.DefaultAllow, named(rule(engine.ActionHide, "**")), false, false},
		{"one is allowed", engine.DefaultDeny, named(rule(engine.ActionAllow, "t")), true, true},
		{"one is held", engine.DefaultDeny, named(rule(engine.ActionRequireApproval, "t")), true, true},
		{"one is allowed and denied", engine.DefaultDeny, named(rule(engine.ActionAllow, "t"), rule(engine.ActionDeny, "t")), false, true},
		{"one is allowed, all denied", engine.DefaultDeny, named(rule(engine.ActionAllow, "t"), rule(engine.ActionDeny)), false, true},
		{"some are allowed, all of them denied", engine.DefaultDeny, named(rule(engine.ActionAllow, "read_a*"), rule(engine.ActionDeny, "read_*")), false, true},
		{"some are allowed, the same denied", engine.DefaultDeny, named(rule(engine.ActionAllow, "*_all"), rule(engine.ActionHide, "*_all")), false, false},
		{"a pattern and a name are allowed, and the pattern is denied", engine.DefaultDeny, named(rule(engine.ActionAllow, "a*", "t"), rule(engine.ActionDeny, "a*")), true, true},
		{"some are allowed, some of them denied", engine.DefaultDeny, named(rule(engine.ActionAllow, "read_*"), rule(engine.ActionDeny, "read_a*")), true, true},
		{"a limit allows nothing", engine.DefaultDeny, []engine.Rule{{Name: "l", Limits: []engine.RateLimit{{Max: 1, Window: engine.MinWindow, Per: []engine.Dimension{engine.PerTool}}}}}, false, true},
		{"another's rule", engine.DefaultDeny, []engine.Rule{{Name: "r", Action: engine.ActionAllow, Match: engine.Match{Principal: []string{"ben"}}}}, false, true},
		{"another server's rule", engine.DefaultDeny, []engine.Rule{{Name: "r", Action: engine.ActionAllow, Match: engine.Match{Server: []string{"z*"}}}}, false, true},
		{"approvers of tools that are not the same", engine.DefaultDeny, []engine.Rule{
			{Name: "a", Action: engine.ActionRequireApproval, Approvers: []string{"x"}, Match: engine.Match{Tool: []string{"t"}}},
			{Name: "b", Action: engine.ActionRequireApproval, Approvers: []string{"y"}, Match: engine.Match{Tool: []string{"t"}, Category: []string{"write"}}},
		}, true, true},
		{"approvers without a common group", engine.DefaultDeny, []engine.Rule{
			{Name: "a", Action: engine.ActionRequireApproval, Approvers: []string{"x"}, Match: engine.Match{Tool: []string{"t"}}},
			{Name: "b", Action: engine.ActionRequireApproval, Approvers: []string{"y"}, Match: engine.Match{Tool: []string{"t"}}},
		}, false, true},
		{"a method is allowed", engine.DefaultDeny, named(engine.Rule{Action: engine.ActionAllow, Match: engine.Match{Method: []string{"prompts/*"}}}), true, true},
		{"a method is allowed and denied", engine.DefaultDeny, named(engine.Rule{Action: engine.ActionAllow, Match: engine.Match{Method: []string{"prompts/get"}}}, engine.Rule{Action: engine.ActionDeny, Match: engine.Match{Method: []string{"prompts/get"}}}), false, true},
		{"some methods are allowed, all denied", engine.DefaultDeny, named(engine.Rule{Action: engine.ActionAllow, Match: engine.Match{Method: []string{"prompts/*"}}}, engine.Rule{Action: engine.ActionDeny, Match: engine.Match{Method: []string{"*"}, Principal: []string{"ana"}}}), false, true},
		{"some methods are allowed, all tools denied", engine.DefaultDeny, named(engine.Rule{Action: engine.ActionAllow, Match: engine.Match{Method: []string{"prompts/*"}}}, rule(engine.ActionDeny)), true, true},
		{"tools and a method are allowed, and each is denied", engine.DefaultDeny, named(engine.Rule{Action: engine.ActionAllow, Match: engine.Match{Method: []string{"tools/call", "prompts/get"}}},
			engine.Rule{Action: engine.ActionDeny, Match: engine.Match{Method: []string{"prompts/get"}}}, rule(engine.ActionDeny)), false, true},
		{"another's method", engine.DefaultDeny, named(engine.Rule{Action: engine.ActionAllow, Match: engine.Match{Method: []string{"prompts/*"}, Principal: []string{"ben"}}}), false, true},
		{"tools are allowed by their method, and all denied", engine.DefaultDeny, named(engine.Rule{Action: engine.ActionAllow, Match: engine.Match{Method: []string{"tools/call"}}}, rule(engine.ActionDeny)), false, true},
		{"a method is denied", engine.DefaultAllow, named(engine.Rule{Action: engine.ActionDeny, Match: engine.Match{Method: []string{"prompts/*"}}}), true, true},
		{"a method is hidden", engine.DefaultAllow, named(engine.Rule{Action: engine.ActionHide, Match: engine.Match{Method: []string{"prompts/*"}}}), true, true},
		{"every method is hidden", engine.DefaultAllow, named(engine.Rule{Action: engine.ActionHide, Match: engine.Match{Method: []string{"*"}}}), false, false},
		{"another's is hidden", engine.DefaultAllow, []engine.Rule{{Name: "r", Action: engine.ActionHide, Match: engine.Match{Principal: []string{"ben"}}}}, true, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			set, err := engine.Compile([]engine.Document{{Name: "d", Default: tt.fallback, Rules: tt.rules}}, options)
			if err != nil {
				t.Fatal(err)
			}
			want := engine.Access{CouldAllow: tt.some, HidesNone: tt.hidesNone, PromptsAlike: true, ResourcesAlike: true}
			got := set.Access(engine.Subject{Caller: engine.Principal{Tenant: "acme", Name: "ana"}}, "s")
			if got.CouldList = false; got != want {
				t.Errorf("%+v, want %+v", got, want)
			}
		})
	}
	t.Run("an invalid subject", func(t *testing.T) {
		t.Parallel()
		set, err := engine.Compile([]engine.Document{{Name: "d", Default: engine.DefaultAllow}}, options)
		if err != nil {
			t.Fatal(err)
		}
		if got := set.Access(engine.Subject{}, "s"); got != (engine.Access{}) {
			t.Errorf("%+v", got)
		}
	})
}

func BenchmarkAccess(b *testing.B) {
	d := engine.Document{Name: "d", Default: engine.DefaultDeny}
	for i := range 10_000 {
		action := engine.ActionAllow
		if i%2 == 1 {
			action = engine.ActionDeny
		}
		d.Rules = append(d.Rules, engine.Rule{
			Name: fmt.Sprintf("r%d", i), Action: action, Match: engine.Match{Tool: []string{fmt.Sprintf("t%d_*", i/2), fmt.Sprintf("u%d", i/2)}},
		})
	}
	set, err := engine.Compile([]engine.Document{d}, options)
	if err != nil {
		b.Fatal(err)
	}
	subject := engine.Subject{Caller: engine.Principal{Tenant: "acme", Name: "ana"}}
	for b.Loop() {
		if set.Access(subject, "s").CouldAllow {
			b.Fatal("all is denied")
		}
	}
}

// Case X9. TestAccess_CouldList checks CouldList, including cases in which the caller could see a tool although it can
// call no tool.
func TestAccess_CouldList(t *testing.T) {
	t.Parallel()
	rule := func(action engine.Action, reason string, tools ...string) engine.Rule {
		return engine.Rule{Action: action, Reason: reason, Match: engine.Match{Tool: tools}}
	}
	hidden, denied := rule(engine.ActionHide, "", "secret-*"), rule(engine.ActionDeny, "ask the owners", "t")
	classed := func(action engine.Action, reason string) engine.Rule {
		return engine.Rule{Action: action, Reason: reason, Match: engine.Match{Category: []string{"write"}}}
	}
	of := func(principal string, r engine.Rule) engine.Rule {
		r.Match.Principal = []string{principal}
		return r
	}
	for name, tt := range map[string]struct {
		fallback engine.Default
		rules    []engine.Rule
		want     bool
	}{
		"no rule matches":                          {engine.DefaultDeny, nil, false},
		"allowed by default":                       {engine.DefaultAllow, nil, true},
		"a tool is denied with a reason":           {engine.DefaultDeny, []engine.Rule{hidden, denied}, true},
		"tools are denied with a reason":           {engine.DefaultDeny, []engine.Rule{hidden, rule(engine.ActionDeny, "why", "t*")}, true},
		"all are denied with a reason":             {engine.DefaultAllow, []engine.Rule{hidden, rule(engine.ActionDeny, "why")}, true},
		"a tool is denied without a reason":        {engine.DefaultDeny, []engine.Rule{hidden, rule(engine.ActionDeny, "", "t")}, false},
		"a tool with a reason is hidden":           {engine.DefaultDeny, []engine.Rule{denied, rule(engine.ActionHide, "", "t")}, false},
		"tools with a reason are hidden":           {engine.DefaultDeny, []engine.Rule{rule(engine.ActionDeny, "why", "ta*"), rule(engine.ActionHide, "", "t*")}, false},
		"all tools are hidden":                     {engine.DefaultAllow, []engine.Rule{denied, rule(engine.ActionHide, "")}, false},
		"some of them are hidden":                  {engine.DefaultDeny, []engine.Rule{rule(engine.ActionDeny, "why", "t*"), rule(engine.ActionHide, "", "ta*")}, true},
		"those of a class have a reason":           {engine.DefaultDeny, []engine.Rule{hidden, classed(engine.ActionDeny, "why")}, true},
		"those of a class are hidden":              {engine.DefaultDeny, []engine.Rule{denied, classed(engine.ActionHide, "")}, true},
		"another principal has a reason":           {engine.DefaultDeny, []engine.Rule{hidden, of("ben", denied)}, false},
		"it is hidden from another principal":      {engine.DefaultDeny, []engine.Rule{denied, of("ben", rule(engine.ActionHide, ""))}, true},
		"the reason of a hiding rule is not shown": {engine.DefaultDeny, []engine.Rule{rule(engine.ActionHide, "why", "t")}, false},
		"methods other than calls are allowed":     {engine.DefaultDeny, []engine.Rule{{Action: engine.ActionAllow, Match: engine.Match{Method: []string{"prompts/*"}}}}, false},
		"approvers without a common group": {engine.DefaultDeny, []engine.Rule{
			{Action: engine.ActionRequireApproval, Approvers: []string{"x"}, Match: engine.Match{Tool: []string{"t"}}},
			{Action: engine.ActionRequireApproval, Approvers: []string{"y"}, Match: engine.Match{Tool: []string{"t"}}},
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for i := range tt.rules {
				tt.rules[i].Name = fmt.Sprintf("r%d", i)
			}
			set, err := engine.Compile([]engine.Document{{Name: "d", Default: tt.fallback, Rules: tt.rules}}, options)
			if err != nil {
				t.Fatal(err)
			}
			if got := set.Access(engine.Subject{Caller: engine.Principal{Tenant: "acme", Name: "ana"}}, "s"); got.CouldList != tt.want {
				t.Errorf("%+v, want that a list could show a tool: %t", got, tt.want)
			}
		})
	}
}
