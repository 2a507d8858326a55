package engine_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/sluice-mesh/sluice/services/policy/internal/condition"
	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
)

// TestCompare_FindsEveryDifferenceBetweenDecisions compares the decisions that two sets of documents make on calls with
// several arguments. If the effects of two decisions differ, and Compare does not report that it may have missed
// changes, Compare must return a change with these effects.
func TestCompare_FindsEveryDifferenceBetweenDecisions(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		before, call := drawDocuments(t, "d"), drawCall(t)
		drawScopes(t, &call)
		after := drawEdit(t, before)
		with := drawObserved(t, before)
		if rapid.Bool().Draw(t, "the change also observes") {
			drawObserved(t, after)
		}
		old, next, err := engine.CompilePair(before, after, with)
		if err != nil {
			t.Fatal(err)
		}
		changes, complete := engine.Compare(old, next, call)
		for _, params := range slices.Sorted(maps.Keys(someParams)) {
			for _, check := range slices.Sorted(maps.Keys(someChecks)) {
				call.Params, call.CheckArguments = params, someChecks[check]
				was, is := old.Decide(call), next.Decide(call)
				known := func(c engine.Change) bool {
					return c.Before.Effect == was.Effect && c.After.Effect == is.Effect && c.Before.Hidden == was.Hidden && c.After.Hidden == is.Hidden
				}
				if (was.Effect != is.Effect || was.Hidden != is.Hidden) && complete && !slices.ContainsFunc(changes, known) {
					t.Fatalf("%s, %s: %v (%s) becomes %v (%s), and the changes are\n%s", params, check, was.Effect, was.Rule, is.Effect, is.Rule, changesText(changes))
				}
			}
		}
	})
}

// drawEdit returns the documents after a random edit. The edit may add a rule to one document, change the default of
// one document, or replace all documents.
func drawEdit(t *rapid.T, documents []engine.Document) []engine.Document {
	out := slices.Clone(documents)
	for i := range out {
		out[i].Rules = slices.Clone(out[i].Rules)
	}
	if len(out) == 0 || rapid.IntRange(0, 3).Draw(t, "all is replaced") == 0 {
		return drawDocuments(t, "d")
	}
	d := &out[rapid.IntRange(0, len(out)-1).Draw(t, "edited")]
	if rapid.Bool().Draw(t, "the default is edited") {
		d.Default = engine.Default(rapid.IntRange(0, 3).Draw(t, "new default"))
	} else {
		d.Rules = withRule(d.Rules, drawRule(t, "new"))
	}
	removeUseless(d)
	return out
}

// changesText describes changes, with one change on each line.
func changesText(changes []engine.Change) string {
	var out []string
	for i := range changes {
		c := &changes[i]
		line := fmt.Sprintf("%v %s -> %v %s", c.Before.Effect, c.Before.Rule, c.After.Effect, c.After.Rule)
		if c.After.Observed != nil {
			line += fmt.Sprintf(" (would %v)", c.After.Observed.Effect)
		}
		for _, a := range c.Assumptions {
			line += fmt.Sprintf(" if %s is %s", a.Condition, map[condition.Result]string{condition.True: "true", condition.False: "false", condition.Failed: "failed"}[a.Result])
		}
		if c.InvalidArguments {
			line += " for invalid arguments"
		}
		out = append(out, fmt.Sprintf("%s opens=%t closes=%t", line, c.Opens(), c.Closes()))
	}
	return strings.Join(out, "\n")
}

func TestCompare_DescribesChanges(t *testing.T) {
	t.Parallel()
	now := observeNow
	allow := engine.Rule{Tool: "t", Action: engine.ActionAllow}
	limited, strict, conditional, narrower, denied, observed, asked := allow, allow, allow, allow, allow, allow, allow
	limited.Limits = []engine.RateLimit{{Max: 3, Window: time.Minute, Per: []engine.Dimension{engine.PerPrincipal}}}
	strict.Strict = true
	conditional.When, narrower.When = `args.path == "/a"`, `args.path == "/b"`
	denied.Action = engine.ActionDeny
	observed.Action, observed.ObserveUntil = engine.ActionDeny, now.Add(time.Hour)
	asked.Action, asked.Approvers = engine.ActionRequireApproval, []string{"finance"}
	otherApprovers := asked
	otherApprovers.Approvers = []string{"office"}
	for name, tt := range map[string]struct {
		before, after []engine.Rule
		want          string
	}{
		"nothing changes":       {[]engine.Rule{allow}, []engine.Rule{allow}, ""},
		"a rule allows":         {nil, []engine.Rule{allow}, "deny / -> allow d/tools.t opens=true closes=false"},
		"a rule denies":         {[]engine.Rule{allow}, []engine.Rule{denied}, "allow d/tools.t -> deny d/tools.t opens=false closes=true"},
		"the reason differs":    {[]engine.Rule{denied}, nil, ""},
		"a limit is removed":    {[]engine.Rule{limited}, []engine.Rule{allow}, "allow d/tools.t -> allow d/tools.t opens=false closes=false"},
		"an approval is needed": {[]engine.Rule{allow}, []engine.Rule{asked}, "allow d/tools.t -> require_approval d/tools.t opens=false closes=true"},
		"others may approve":    {[]engine.Rule{asked}, []engine.Rule{otherApprovers}, "require_approval d/tools.t -> require_approval d/tools.t opens=false closes=false"},
		"a check is removed":    {[]engine.Rule{strict}, []engine.Rule{allow}, "deny d/tools.t -> allow d/tools.t for invalid arguments opens=true closes=false"},
		"another condition": {[]engine.Rule{conditional}, []engine.Rule{narrower}, `allow d/tools.t -> deny / if args.path == "/a" is true opens=false closes=true
deny / -> allow d/tools.t if args.path == "/b" is true opens=true closes=false
deny d/tools.t -> allow d/tools.t if args.path == "/a" is failed if args.path == "/b" is true opens=true closes=false
allow d/tools.t -> deny d/tools.t if args.path == "/a" is true if args.path == "/b" is failed opens=false closes=true`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			with := options
			with.Now = now
			document := func(rules []engine.Rule) []engine.Document {
				return []engine.Document{{Name: "d", Default: engine.DefaultDeny, Rules: rules}}
			}
			old, next, err := engine.CompilePair(document(tt.before), document(tt.after), with)
			if err != nil {
				t.Fatal(err)
			}
			changes, complete := engine.Compare(old, next, engine.Call{Server: "s", Tool: "t", Subject: person("ana"), Facts: callable})
			if diff := cmp.Diff(tt.want, changesText(changes)); diff != "" || !complete {
				t.Errorf("complete %t (-want +got):\n%s", complete, diff)
			}
		})
	}
}

// In the new version, a rule that denies a call is no longer enforced but only recorded (mode: observe), so the
// document's default allows the call. Compare reports this change.
func TestCompare_ObservedRuleOpens(t *testing.T) {
	t.Parallel()
	with := options
	with.Now = observeNow
	deny := engine.Rule{Name: "no", Match: engine.Match{Tool: []string{"t"}}, Action: engine.ActionDeny}
	before := []engine.Document{{Name: "d", Default: engine.DefaultAllow, Rules: []engine.Rule{deny}}}
	deny.ObserveUntil = observeFuture
	after := []engine.Document{{Name: "d", Default: engine.DefaultAllow, Rules: []engine.Rule{deny}}}
	old, next, err := engine.CompilePair(before, after, with)
	if err != nil {
		t.Fatal(err)
	}
	changes, complete := engine.Compare(old, next, engine.Call{Server: "s", Tool: "t", Subject: person("ana"), Facts: callable})
	if got := changesText(changes); got != "deny d/no -> allow / (would deny) opens=true closes=false" || !complete {
		t.Errorf("the changes are\n%s", got)
	}
}

// The condition of one of ten rules changes. Compare reports this change, and reports that it may have missed other
// changes.
func TestCompare_IsIncompleteForManyConditions(t *testing.T) {
	t.Parallel()
	rules := func(last string) (out []engine.Rule) {
		for i := range 10 {
			out = append(out, engine.Rule{Name: fmt.Sprintf("r%d", i), Match: engine.Match{Tool: []string{"t"}}, When: fmt.Sprintf("args.a == %d", i), Action: engine.ActionDeny})
		}
		out[9].When = last
		return out
	}
	old, next, err := engine.CompilePair([]engine.Document{{Name: "d", Default: engine.DefaultAllow, Rules: rules("args.b == 1")}}, []engine.Document{{Name: "d", Default: engine.DefaultAllow, Rules: rules("args.b == 2")}}, options)
	if err != nil {
		t.Fatal(err)
	}
	changes, complete := engine.Compare(old, next, engine.Call{Server: "s", Tool: "t", Subject: person("ana"), Facts: callable})
	if got := changesText(changes); complete || !strings.Contains(got, "deny d/r9 -> allow / if args.b == 1 is true opens=true") {
		t.Errorf("complete %t, changes\n%s", complete, got)
	}
}

// The documents contain names and patterns of servers, tools, prompts, URIs, methods and callers. The mentioned names
// include an example for each pattern.
func TestMentions_ContainTheNamesOfDocuments(t *testing.T) {
	t.Parallel()
	documents := []engine.Document{{Name: "d", Server: "s-*", Rules: []engine.Rule{
		{Tool: "read"},
		{Name: "r", Match: engine.Match{Tool: []string{"create_*", "x?"}, Groups: []string{"dev", "ops"}, Principal: []string{"ana"}}},
		{Name: "c", When: `caller.subject == "bob" && args.x == "y"`},
		{Name: "m", Match: engine.Match{Prompt: []string{"review_*"}}},
		{Name: "o", Match: engine.Match{Server: []string{"s-1"}, Category: []string{"read"}, Method: []string{"acme/*"}}},
	}}}
	var servers, calls, callers []string
	for _, m := range engine.MentionedServers(documents) {
		servers = append(servers, m.Name)
	}
	for _, m := range engine.MentionedCalls(documents, "s-1") {
		if m.Method == "" || m.Method == "prompts/get" || strings.HasPrefix(m.Method, "acme") || strings.Contains(m.Method, "any-other") {
			calls = append(calls, m.Method+" "+m.Name+" "+m.Pattern)
		}
	}
	all, complete := engine.MentionedCallers(documents, 100)
	for _, s := range all {
		text := fmt.Sprintf("%s %s %s %v", s.Caller.Tenant, s.Caller.Name, s.Caller.Agent, s.Caller.Groups)
		for _, p := range s.Chain {
			text += " for " + p.Name
		}
		callers = append(callers, text)
	}
	for name, diff := range map[string]string{
		"servers": cmp.Diff([]string{"any-other-server", "s-any", "s-1"}, servers),
		"calls":   cmp.Diff([]string{" any-other-tool *", " read ", " create_any create_*", " xx x?", "any-other/method  ", "acme/any  ", "prompts/get any-other-prompt *", "prompts/get review_any review_*", "notifications/any-other  "}, calls),
		"callers": cmp.Diff([]string{
			"default any-other-caller any-other-agent []", "default ana any-other-agent [dev]", "default ana any-other-agent [ops]",
			"default bob any-other-agent []", "default any-other-caller bob []", "default any-other-caller any-other-agent [bob]", "bob any-other-caller any-other-agent []",
			"default y any-other-agent []", "default any-other-caller y []", "default any-other-caller any-other-agent [y]", "y any-other-caller any-other-agent []",
			"default ana any-other-agent [dev ops]",
		}, callers),
	} {
		if diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	chained := []engine.Document{{Name: "d", Rules: []engine.Rule{{Name: "c", When: `caller.chain.exists(p, p.subject == "bob")`}}}}
	behind := func(s engine.Subject) bool { return len(s.Chain) == 1 && s.Chain[0].Name == "bob" }
	if all, _ := engine.MentionedCallers(chained, 100); !slices.ContainsFunc(all, behind) {
		t.Error("no caller has bob in its chain")
	}
	ofClient := []engine.Document{{Name: "d", Rules: []engine.Rule{{Name: "c", When: `caller.client == "cli" && "write" in caller.scopes`}}}}
	hasClient := func(s engine.Subject) bool { return s.Caller.Client == "cli" }
	hasScope := func(s engine.Subject) bool { return slices.Equal(s.Caller.Scopes, []string{"write"}) }
	if all, _ := engine.MentionedCallers(ofClient, 100); !slices.ContainsFunc(all, hasClient) || !slices.ContainsFunc(all, hasScope) {
		t.Error("no caller has the client of the condition, or none has its scope")
	}
	if some, full := engine.MentionedCallers(documents, 3); !complete || full || len(some) != 4 {
		t.Errorf("all callers: %t; at most 3: %d, complete %t", complete, len(some), full)
	}
	if got, _ := engine.PossibleClasses(documents, "s-1", 100); len(got) != 1+5*4 {
		t.Errorf("the documents distinguish %d classes", len(got))
	}
	if got, _ := engine.PossibleClasses(documents, "s-2", 100); len(got) != 1 {
		t.Errorf("the rules about another server distinguish %d classes", len(got))
	}
}
