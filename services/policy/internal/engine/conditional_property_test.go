package engine_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/sluice-mesh/sluice/services/policy/internal/condition"
	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
)

// drawCondition randomly adds a condition to half of the rules.
func drawCondition(t *rapid.T, r *engine.Rule) {
	if rapid.Bool().Draw(t, "unconditional") {
		return
	}
	r.When = rapid.SampledFrom(slices.Sorted(maps.Keys(someConditions))).Draw(t, "when")
	if r.Action == engine.ActionHide && strings.Contains(r.When, "args") {
		r.Action = engine.ActionDeny
	}
	if r.Otherwise = rapid.Bool().Draw(t, "otherwise"); r.Otherwise && rapid.Bool().Draw(t, "only a reason") {
		*r = engine.Rule{Name: r.Name, Tool: r.Tool, Match: r.Match, Reason: "a hint", When: r.When, Otherwise: true}
	}
}

func removeCondition(r *engine.Rule) {
	r.When, r.Otherwise = "", false
	if r.Action == engine.ActionNone && r.Limits == nil {
		r.Action = engine.ActionAllow
	}
}

// someConditions maps conditions to functions that return their results for a call and a principal.
var someConditions = map[string]func(engine.Call, engine.Principal) condition.Result{
	"args.n == 1":                     func(c engine.Call, _ engine.Principal) condition.Result { return someParams[c.Params].isOne },
	"args.?ok.orValue(false) == true": func(c engine.Call, _ engine.Principal) condition.Result { return someParams[c.Params].isOK },
	`caller.agent == "ci-1"`:          func(_ engine.Call, p engine.Principal) condition.Result { return resultOf(p.Agent == "ci-1") },
	`"ops" in caller.groups`: func(_ engine.Call, p engine.Principal) condition.Result {
		return resultOf(slices.Contains(p.Groups, "ops"))
	},
	`tool.known && tool.risk == "low"`: func(c engine.Call, _ engine.Principal) condition.Result { return resultOf(c.Facts.Risk == "low") },
	`tool.risk == "low"`: func(c engine.Call, _ engine.Principal) condition.Result {
		if c.Facts.Category == "" {
			return condition.Failed
		}
		return resultOf(c.Facts.Risk == "low")
	},
	`caller.agent == "ci-1" && args.n < 3`: func(c engine.Call, p engine.Principal) condition.Result {
		if p.Agent != "ci-1" {
			return condition.False
		}
		return someParams[c.Params].isSmall
	},
}

func resultOf(held bool) condition.Result {
	if held {
		return condition.True
	}
	return condition.False
}

// removeUseless removes the conditions of rules that allow calls, if the document's default allows calls too. With such
// conditions, the document would not compile.
func removeUseless(d *engine.Document) {
	for i := range d.Rules {
		if r := &d.Rules[i]; d.Default == engine.DefaultAllow && r.Action == engine.ActionAllow {
			removeCondition(r)
		}
	}
	removeTwins(d)
}

// someParams maps params to the results of the conditions args.n == 1, args.n < 3, and args.?ok.orValue(false) == true.
var someParams = map[string]struct{ isOne, isSmall, isOK condition.Result }{
	"":                                {isOK: condition.False},
	`{"arguments":{"n":1}}`:           {condition.True, condition.True, condition.False},
	`{"arguments":{"n":2,"ok":true}}`: {condition.False, condition.True, condition.True},
	`{"arguments":{"n":"1"}}`:         {isOne: condition.False, isOK: condition.False},
	`{"arguments":{"n":1,"n":1}}`:     {}, // can't be parsed
}

// modelSpeaks reports whether the decision is a denial by a rule that gives a reason.
func modelSpeaks(d engine.Decision) bool {
	return d.Code == engine.DeniedByRule && d.Message != ""
}

// TestVisible_ShowsAToolIfSomeArgumentsMayUseIt compares the visibility of a tool with the decisions on calls with all
// combinations of arguments. If conditions depend on each other, the tool may be visible although all calls are denied.
func TestVisible_ShowsAToolIfSomeArgumentsMayUseIt(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		documents, call := drawDocuments(t, "d"), drawCall(t)
		call.Method, call.Ref = "", ""
		for i := range documents {
			for j := range documents[i].Rules {
				if r := &documents[i].Rules[j]; r.When != "" && r.Action != engine.ActionHide {
					r.When = rapid.SampledFrom([]string{"args.a == true", "args.b == true", "args.a == true && args.b == true", `caller.agent == "ci-1"`}).Draw(t, "other when")
				}
				documents[i].Rules[j].Grant = engine.Grant{}
			}
		}
		set, err := engine.Compile(documents, options)
		if err != nil {
			t.Fatal(err)
		}
		usable, speaks := false, false
		for _, params := range []string{"true,false", "true,true", "false,true", "false,false"} {
			a, b, _ := strings.Cut(params, ",")
			call.Params = `{"arguments":{"a":` + a + `,"b":` + b + `}}`
			d := set.Decide(call)
			usable, speaks = usable || d.Effect != engine.Deny, speaks || modelSpeaks(d)
		}
		got := set.Visible(call.Subject, call.Server, call.Tool, call.Facts)
		if usable && !got.Visible || got.Visible && !usable && !speaks && !dependent(documents) {
			t.Fatalf("Visible = %+v; some arguments may use the tool: %v; a denial has a reason: %v", got, usable, speaks)
		}
	})
}

// dependent reports whether some conditions depend on each other. If they do, a tool may be listed although its calls
// are denied for all arguments.
func dependent(documents []engine.Document) bool {
	return slices.ContainsFunc(documents, func(d engine.Document) bool {
		return slices.ContainsFunc(d.Rules, func(r engine.Rule) bool { return strings.Count(r.When, "args") > 1 })
	})
}
