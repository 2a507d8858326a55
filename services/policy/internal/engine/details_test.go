package engine_test

import (
	"strings"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
)

func compileRules(t *testing.T, rules ...engine.Rule) *engine.Set {
	t.Helper()
	set, err := engine.Compile([]engine.Document{{Name: "d", Server: "s", Default: engine.DefaultDeny, Rules: rules}}, options)
	if err != nil {
		t.Fatal(err)
	}
	return set
}

func ana() engine.Subject {
	return engine.Subject{Caller: engine.Principal{Tenant: "default", Name: "ana"}}
}

func callOf(tool string) engine.Call {
	return engine.Call{Server: "s", Tool: tool, Facts: callable, Subject: ana()}
}

// TestDecide_UnknownPropertiesCountAgainstTheCaller checks a tool that has no classification. A rule that matches a
// property of the classification does not allow the tool, but denies it.
func TestDecide_UnknownPropertiesCountAgainstTheCaller(t *testing.T) {
	t.Parallel()
	unknown := callOf("t")
	unknown.Facts = engine.Facts{Status: engine.Callable}
	for name, match := range map[string]engine.Match{
		"category": {Category: []string{"read"}}, "risk": {Risk: []string{"low"}}, "tags": {Tags: []string{"files"}},
		"annotations": {Annotations: map[string]bool{"readOnlyHint": true}},
	} {
		allows := compileRules(t, engine.Rule{Name: "r", Match: match, Action: engine.ActionAllow})
		if d := allows.Decide(unknown); d.Code != engine.DeniedByDefault {
			t.Errorf("a rule that allows by %s: %+v", name, d)
		}
		denies := compileRules(t, engine.Rule{Name: "r", Match: match, Action: engine.ActionDeny}, engine.Rule{Tool: "t", Action: engine.ActionAllow})
		if d := denies.Decide(unknown); d.Code != engine.DeniedByRule {
			t.Errorf("a rule that denies by %s: %+v", name, d)
		}
	}
}

// TestEvaluatesConditions_OnlyForRulesThatMatchTheCall checks which calls depend on conditions that read arguments or
// the time.
func TestEvaluatesConditions_OnlyForRulesThatMatchTheCall(t *testing.T) {
	t.Parallel()
	set := compileRules(t,
		engine.Rule{Tool: "plain", Action: engine.ActionAllow},
		engine.Rule{Tool: "args", Action: engine.ActionAllow, When: "args.n == 1"},
		engine.Rule{Tool: "now", Action: engine.ActionAllow, When: "now.getHours() == 1"},
		engine.Rule{Tool: "caller", Action: engine.ActionAllow, When: `caller.agent == "ci"`},
		engine.Rule{Tool: "grant", Action: engine.ActionRequireApproval, Grant: engine.Grant{Calls: 1, Within: time.Minute, Where: "args.n == 1"}},
		engine.Rule{Tool: "ask", Action: engine.ActionRequireApproval},
	)
	for tool, want := range map[string]bool{"plain": false, "args": true, "now": true, "caller": false, "grant": true, "ask": false, "other": false} {
		if got := set.EvaluatesConditions(callOf(tool)); got != want {
			t.Errorf("%s: %t; want %t", tool, got, want)
		}
	}
}

// TestVisible_OfManyOpenConditions checks a tool whose rules have so many conditions on arguments that Visible does not
// try all combinations of their results.
func TestVisible_OfManyOpenConditions(t *testing.T) {
	t.Parallel()
	var open []engine.Rule
	for _, name := range []string{"a", "b", "c", "d", "e", "f"} {
		open = append(open, engine.Rule{Name: "deny-" + name, Match: engine.Match{Tool: []string{"t"}}, Action: engine.ActionDeny, When: "args." + name + " == 1"})
	}
	always := engine.Rule{Name: "never", Match: engine.Match{Tool: []string{"t"}}, Action: engine.ActionDeny}
	allow := engine.Rule{Tool: "t", Action: engine.ActionAllow}
	conditional := engine.Rule{Tool: "t", Action: engine.ActionAllow, When: "args.g == 1"}
	caller := engine.Rule{Name: "not-ana", Match: engine.Match{Tool: []string{"t"}}, Action: engine.ActionDeny, When: `caller.subject == "ana"`}
	for _, tt := range []struct {
		name  string
		rules []engine.Rule
		want  bool
	}{
		{"denied by open conditions and allowed", append(open[:6:6], allow), true},
		{"denied by open conditions and allowed by another", append(open[:6:6], conditional), true},
		{"denied by open conditions alone", open, false},
		{"denied always", append(open[:6:6], allow, always), false},
		{"denied by a condition with a known result", append(open[:6:6], allow, caller), false},
	} {
		if got := compileRules(t, tt.rules...).Visible(ana(), "s", "t", callable); got.Visible != tt.want {
			t.Errorf("%s: %+v; want %t", tt.name, got, tt.want)
		}
	}
}

// TestVisible_CodeIsThatOfTheMostPermissiveCall checks the code of a tool whose calls can be refused, held for approval
// or allowed, depending on the arguments.
func TestVisible_CodeIsThatOfTheMostPermissiveCall(t *testing.T) {
	t.Parallel()
	deny := engine.Rule{Name: "a-denial", Match: engine.Match{Tool: []string{"t"}}, Action: engine.ActionDeny, When: "args.a == 1", Reason: "never"}
	ask := engine.Rule{Name: "ask", Match: engine.Match{Tool: []string{"t"}}, Action: engine.ActionRequireApproval, When: "args.b == 1"}
	allow := engine.Rule{Name: "allow", Match: engine.Match{Tool: []string{"t"}}, Action: engine.ActionAllow, When: "args.c == 1"}
	for _, tt := range []struct {
		rules   []engine.Rule
		visible bool
		code    engine.Code
	}{
		{[]engine.Rule{deny}, true, engine.DeniedByRule},
		{[]engine.Rule{deny, ask}, true, engine.ApprovalRequired},
		{[]engine.Rule{deny, ask, allow}, true, ""},
		{[]engine.Rule{ask, allow}, true, ""},
	} {
		if got := compileRules(t, tt.rules...).Visible(ana(), "s", "t", callable); got.Visible != tt.visible || got.Code != tt.code {
			t.Errorf("%d rules: %+v; want %t, %q", len(tt.rules), got, tt.visible, tt.code)
		}
	}
	stopped := compileRules(t, allow).Visible(ana(), "s", "t", engine.Facts{Status: engine.Quarantined})
	if stopped.Visible || stopped.Code != engine.ToolQuarantined {
		t.Errorf("a stopped tool: %+v", stopped)
	}
	if got := compileRules(t, allow).Visible(engine.Subject{}, "s", "t", callable); got.Visible || got.Code != engine.Unauthenticated {
		t.Errorf("no subject: %+v", got)
	}
}

// TestAccess_CouldListOnlyForRulesAboutTheServerAndTheCaller checks that CouldList is true only if a rule that applies
// to the server and the caller refuses calls with a reason.
func TestAccess_CouldListOnlyForRulesAboutTheServerAndTheCaller(t *testing.T) {
	t.Parallel()
	reason := engine.Rule{Name: "r", Match: engine.Match{Tool: []string{"x*"}}, Action: engine.ActionDeny, Reason: "ask the owner"}
	silent, ofServer, ofOther := reason, reason, reason
	silent.Reason = ""
	ofServer.Match.Server = []string{"other"}
	ofOther.Match.Principal = []string{"zed"}
	for _, tt := range []struct {
		name, server string
		rule         engine.Rule
		want         bool
	}{
		{"a reason", "s", reason, true}, {"no reason", "s", silent, false}, {"a document about another server", "other", reason, false},
		{"a rule about another server", "", ofServer, false}, {"a rule about another caller", "s", ofOther, false},
	} {
		set, err := engine.Compile([]engine.Document{{Name: "d", Server: tt.server, Default: engine.DefaultDeny, Rules: []engine.Rule{tt.rule}}}, options)
		if err != nil {
			t.Fatal(err)
		}
		if got := set.Access(ana(), "s"); got.CouldList != tt.want || got.CouldAllow {
			t.Errorf("%s: %+v; want CouldList %t", tt.name, got, tt.want)
		}
	}
}

// TestBucket_PerToolSeparatesMethods checks that a limit per tool counts each method separately. The calls of a method
// must also be counted separately from the calls to a tool that has the same name as the method.
func TestBucket_PerToolSeparatesMethods(t *testing.T) {
	t.Parallel()
	set := compileRules(t, engine.Rule{
		Name: "r", Match: engine.Match{Method: []string{"*"}}, Action: engine.ActionAllow,
		Limits: []engine.RateLimit{{Max: 1, Window: time.Minute, Per: []engine.Dimension{engine.PerTool}}},
	})
	buckets := make(map[string]string)
	for _, call := range []engine.Call{{Method: "prompts/list"}, {Method: "resources/list"}, {Tool: "prompts/list"}, {Tool: "x"}} {
		call.Server, call.Subject, call.Facts = "s", ana(), callable
		d := set.Decide(call)
		if len(d.Limits) != 1 {
			t.Fatalf("%+v", d)
		}
		if other, there := buckets[d.Limits[0].Bucket]; there {
			t.Errorf("%s%s shares a bucket with %s", call.Method, call.Tool, other)
		}
		buckets[d.Limits[0].Bucket] = call.Method + call.Tool
	}
}

func TestRuleDigest_ChangesWithAnnotations(t *testing.T) {
	t.Parallel()
	digests := make(map[[32]byte]bool)
	for _, annotations := range []map[string]bool{nil, {"readOnlyHint": true}, {"readOnlyHint": false}, {"destructiveHint": true}} {
		set := compileRules(t, engine.Rule{Name: "r", Match: engine.Match{Annotations: annotations}, Action: engine.ActionDeny})
		call := callOf("t")
		call.Facts.Hints = map[string]bool{"readOnlyHint": annotations["readOnlyHint"], "destructiveHint": true}
		d := set.Decide(call)
		if d.Code != engine.DeniedByRule || digests[d.RuleDigest] {
			t.Errorf("%v: %+v", annotations, d)
		}
		digests[d.RuleDigest] = true
	}
}

func TestCompile_TagsHaveALength(t *testing.T) {
	t.Parallel()
	for n, want := range map[int]bool{1: true, 64: true, 65: false} {
		_, err := engine.Compile([]engine.Document{{Name: "d", Rules: []engine.Rule{{
			Name: "r", Match: engine.Match{Tags: []string{strings.Repeat("a", n)}}, Action: engine.ActionDeny,
		}}}}, options)
		if (err == nil) != want {
			t.Errorf("a tag of %d letters: %v", n, err)
		}
	}
}

// TestAccess_PatternsWithDifferentEndsAreDifferent checks two patterns, one allowed and one denied. If the denied
// pattern does not cover every name that the allowed pattern matches, CouldAllow must be true, even if the patterns
// differ only after the first wildcard.
func TestAccess_PatternsWithDifferentEndsAreDifferent(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		allowed, denied string
		want            bool
	}{
		{"x*b", "x*c", true}, {"x*b", "x?b", true}, {"x*b", "x*b", false}, {"x*b?", "x*b*", true}, {"x*b", "x*", false}, {"x*b", "y*", true},
	} {
		set := compileRules(t,
			engine.Rule{Name: "allow", Match: engine.Match{Tool: []string{tt.allowed}}, Action: engine.ActionAllow},
			engine.Rule{Name: "deny", Match: engine.Match{Tool: []string{tt.denied}}, Action: engine.ActionDeny})
		if got := set.Access(ana(), "s"); got.CouldAllow != tt.want {
			t.Errorf("%s allowed and %s denied: %+v; want CouldAllow %t", tt.allowed, tt.denied, got, tt.want)
		}
	}
}

// TestDecide_PoolsTheConditionsOfGrants checks the approval terms that result from two rules whose grants have
// conditions.
func TestDecide_PoolsTheConditionsOfGrants(t *testing.T) {
	t.Parallel()
	ask := func(name string, grant engine.Grant) engine.Rule {
		return engine.Rule{Name: name, Match: engine.Match{Tool: []string{"t"}}, Action: engine.ActionRequireApproval, Grant: grant}
	}
	set := compileRules(t,
		ask("a", engine.Grant{Calls: 5, Within: time.Minute, Critical: true, Where: "args.n < 9", ExtraArgs: true}),
		ask("b", engine.Grant{Calls: 3, Within: time.Hour, Critical: true, Where: "args.n > 0"}),
		ask("c", engine.Grant{Calls: 7, Within: time.Hour, Critical: true, Where: "args.n > 0"}))
	call := callOf("t")
	call.Params = `{"arguments":{"n":1}}`
	terms := set.Decide(call).Approval
	want := engine.Grant{Calls: 3, Within: time.Minute, Critical: true}
	if terms == nil || terms.Grant != want || strings.Join(terms.Where, "; ") != "args.n < 9 // extra_args: allow; args.n > 0" {
		t.Errorf("%+v; want %+v", terms, want)
	}
	for _, params := range []string{`{"arguments":{"n":0}}`, `{"arguments":{"n":9}}`, `{"arguments":{}}`, ``} {
		call.Params = params
		if terms := set.Decide(call).Approval; terms == nil || terms.Grant != (engine.Grant{}) || terms.Where != nil {
			t.Errorf("%s: %+v; want no grant", params, terms)
		}
	}
}
