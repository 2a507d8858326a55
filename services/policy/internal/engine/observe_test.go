package engine_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
)

// These are the time at which documents are compiled, a time before it, and a time after it.
var (
	observeNow    = time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	observePast   = observeNow.Add(-time.Hour)
	observeFuture = observeNow.Add(time.Hour)
)

func drawUntil(t *rapid.T, label string) time.Time {
	return rapid.SampledFrom([]time.Time{{}, {}, {}, observePast, observeNow, observeFuture}).Draw(t, label)
}

// drawObserved randomly puts some rules and documents in observe mode until a time. It returns options in which some
// servers are in observe mode.
func drawObserved(t *rapid.T, documents []engine.Document) engine.Options {
	until := make(map[string]time.Time) // both halves of a rule have the same time
	for i := range documents {
		documents[i].ObserveUntil = drawUntil(t, "document is observed")
		for j := range documents[i].Rules {
			r := &documents[i].Rules[j]
			key := documents[i].Name + "/" + r.Name + "/" + r.Tool
			if _, drawn := until[key]; !drawn {
				until[key] = drawUntil(t, "rule is observed")
			}
			r.ObserveUntil = until[key]
		}
	}
	with := options
	with.Now = observeNow
	with.Observe = engine.Observe{Servers: map[string]time.Time{"s": drawUntil(t, "s is observed")}}
	if rapid.IntRange(0, 9).Draw(t, "everything is observed") == 0 {
		with.Observe.All = observeFuture
	}
	return with
}

// drawSet returns a set in which something may be in observe mode.
func drawSet(t *rapid.T) *engine.Set {
	documents := drawDocuments(t, "d")
	return mustCompile(t, documents, drawObserved(t, documents))
}

func mustCompile(t *rapid.T, documents []engine.Document, with engine.Options) *engine.Set {
	set, err := engine.Compile(documents, with)
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// modelEnforced returns the documents and rules that are enforced at observeNow, and reports whether the server is in
// observe mode.
func modelEnforced(documents []engine.Document, with engine.Options, server string) (enforced []engine.Document, observed bool) {
	applying, observing := 0, 0
	for _, d := range documents {
		applies := modelApplies(d, server)
		if applies {
			applying++
		}
		if d.ObserveUntil.After(observeNow) {
			if applies {
				observing++
			}
			continue
		}
		var rules []engine.Rule
		for _, r := range d.Rules {
			if !r.ObserveUntil.After(observeNow) {
				rules = append(rules, r)
			}
		}
		d.Rules = rules
		enforced = append(enforced, d)
	}
	observed = applying > 0 && applying == observing || with.Observe.All.After(observeNow) || with.Observe.Servers[server].After(observeNow)
	return enforced, observed
}

// TestDecide_ObservedAgreesWithTheModel draws a set in which something may be in observe mode. It compares a decision
// of this set with the decisions of two sets in which everything is enforced. One of these sets has only the enforced
// documents and rules, and the other has all documents and rules.
func TestDecide_ObservedAgreesWithTheModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		documents, call := drawDocuments(t, "d"), drawCall(t)
		drawScopes(t, &call)
		with := drawObserved(t, documents)
		got := mustCompile(t, documents, with).Decide(call)
		enforced, observed := modelEnforced(documents, with, call.Server)
		want, would := decide(t, enforced, call), decide(t, documents, call)
		switch {
		case observed && want.Effect != engine.Allow:
			want = engine.Decision{Effect: engine.Allow}
		case observed:
			want.Limits, want.Timeout, want.TimeoutRule = nil, 0, engine.RuleRef{}
		}
		var limits []engine.Limit
		for _, l := range would.Limits {
			same := func(o engine.Limit) bool { return o.Bucket == l.Bucket }
			if want.Effect == engine.Allow && would.Effect == engine.Allow && !slices.ContainsFunc(want.Limits, same) {
				limits = append(limits, l)
			}
		}
		differs := want.Code != would.Code || want.Message != would.Message || want.Rule != would.Rule
		if want.Effect != would.Effect || limits != nil || differs && want.Effect != engine.Allow {
			want.Observed = &engine.Observation{Effect: would.Effect, Code: would.Code, Message: would.Message, Rule: would.Rule, Limits: limits}
		}
		if diff := gocmp.Diff(want, got); diff != "" {
			t.Fatalf("Decide (-model +got):\n%s", diff)
		}
	})
}

// TestCompile_ObservesNothingByDefault checks that everything is enforced if all times of observe mode have passed, or
// if the time of the compilation is unknown. The results must be the same as those of a set without observe mode.
func TestCompile_ObservesNothingByDefault(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		documents, call := drawDocuments(t, "d"), drawCall(t)
		drawScopes(t, &call)
		plain := mustCompile(t, documents, options)
		with := options
		switch rapid.IntRange(0, 2).Draw(t, "case") {
		case 0: // nothing has a time
			with.Now = observeNow
		case 1: // all times have passed
			with = drawObserved(t, documents)
			with.Now = observeFuture
		case 2: // the time of the compilation is unknown
			with = drawObserved(t, documents)
			with.Now = time.Time{}
		}
		set := mustCompile(t, documents, with)
		if len(set.Observed()) > 0 || !set.Until().IsZero() || set.Revision() != plain.Revision() {
			t.Fatalf("%v is observed until %v, revision %s, want %s", set.Observed(), set.Until(), set.Revision(), plain.Revision())
		}
		d := set.Decide(call)
		for _, results := range [][2]any{
			{plain.Explain(call), set.Explain(call)},
			{plain.Decide(call), d},
			{plain.Cacheability(call, d), set.Cacheability(call, d)},
			{plain.Visible(call.Subject, call.Server, call.Tool, call.Facts), set.Visible(call.Subject, call.Server, call.Tool, call.Facts)},
			{plain.Access(call.Subject, call.Server), set.Access(call.Subject, call.Server)},
		} {
			if diff := gocmp.Diff(results[0], results[1]); diff != "" {
				t.Fatalf("(-plain +got):\n%s", diff)
			}
		}
	})
}

// TestDecide_ObserveOpensOnlyPolicy checks calls that are refused even if every rule and default allows them. Every set
// must refuse these calls, no matter what is in observe mode. The code of the refusal must be the code that a set that
// allows everything returns, or the code of a refusal by a rule or default.
func TestDecide_ObserveOpensOnlyPolicy(t *testing.T) {
	t.Parallel()
	open := mustCompileAll(t)
	rapid.Check(t, func(t *rapid.T) {
		set, call := drawSet(t), drawCall(t)
		switch rapid.IntRange(0, 5).Draw(t, "refused for") {
		case 0:
			call.Facts.Status = rapid.SampledFrom([]engine.Status{engine.Unlisted, engine.Changed, engine.Quarantined}).Draw(t, "status")
		case 1:
			call.Subject.Caller.Name = ""
		case 2:
			call.Subject.Chain = make([]engine.Principal, 5)
		case 3:
			call.Server = "S"
		case 4:
			call.Method, call.Tool = "", "t t"
		case 5:
			call.Method, call.Tool = "", "wasm_model_ask" // no drawn rule names it
		}
		want, got := open.Decide(call), set.Decide(call)
		if want.Effect != engine.Deny || got.Effect != engine.Deny {
			t.Fatalf("decided as %+v, want a refusal", got)
		}
		if policy := got.Code == engine.DeniedByRule || got.Code == engine.DeniedByDefault || got.Code == engine.MethodDenied || got.Code == engine.TypeError || got.Hidden; got.Code != want.Code && !policy {
			t.Fatalf("the code is %q, want %q or the code of a rule or default", got.Code, want.Code)
		}
		if set.Visible(call.Subject, call.Server, call.Tool, call.Facts).Visible && want.Code != engine.DeniedByDefault {
			t.Fatal("the tool is listed")
		}
	})
}

// mustCompileAll returns a set that allows every method and in which every server is in observe mode.
func mustCompileAll(t *testing.T) *engine.Set {
	t.Helper()
	with := options
	with.Now, with.Observe.All = observeNow, observeFuture
	set, err := engine.Compile([]engine.Document{{
		Name: "all", Default: engine.DefaultAllow, Rules: []engine.Rule{{Name: "methods", Match: engine.Match{Method: []string{"*"}}, Action: engine.ActionAllow}},
	}}, with)
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// TestSet_ObservedUntil checks which parts are in observe mode and how they are described. It also checks how the set
// changes at each time at which observe mode ends for a part.
func TestSet_ObservedUntil(t *testing.T) {
	t.Parallel()
	at := func(hours int) time.Time { return observeNow.Add(time.Duration(hours) * time.Hour) }
	with := options
	with.Now = observeNow
	with.Observe = engine.Observe{All: at(5), Servers: map[string]time.Time{"files": at(4), "mail": at(0)}}
	documents := []engine.Document{
		{Name: "b", ObserveUntil: at(3), Default: engine.DefaultDeny},
		{Name: "a", Rules: []engine.Rule{
			{Name: "r", Action: engine.ActionDeny, When: "args.n == 1", ObserveUntil: at(2)},
			{Name: "r", Action: engine.ActionAllow, When: "args.n == 1", Otherwise: true, ObserveUntil: at(2)},
			{Tool: "t", Action: engine.ActionDeny, ObserveUntil: at(1)},
		}},
	}
	set, err := engine.Compile(documents, with)
	if err != nil {
		t.Fatal(err)
	}
	left := []string{"every server", "server files", "document b", "rule a/r", "rule a/tools.t"}
	revisions := make(map[string]bool)
	for hour := 1; ; hour++ {
		var got []string
		for _, o := range set.Observed() {
			got = append(got, o.String())
		}
		if diff := gocmp.Diff(left, got); diff != "" {
			t.Fatalf("Observed in hour %d (-want +got):\n%s", hour, diff)
		}
		if revisions[set.Revision()] {
			t.Fatalf("the revision of hour %d is not new", hour)
		}
		revisions[set.Revision()] = true
		if len(left) == 0 {
			break
		}
		if !set.Until().Equal(at(hour)) {
			t.Fatalf("Until = %v, want %v", set.Until(), at(hour))
		}
		if left = left[:len(left)-1]; len(left) == 0 {
			left = nil
		}
		if set, err = set.At(set.Until()); err != nil {
			t.Fatal(err)
		}
	}
	if !set.Until().IsZero() {
		t.Errorf("Until = %v, want the zero time", set.Until())
	}
}

// TestExplain_NamesObservedRules checks that an explanation contains the rules in observe mode, and marks them.
func TestExplain_NamesObservedRules(t *testing.T) {
	t.Parallel()
	with := options
	with.Now, with.Observe = observeNow, engine.Observe{Servers: map[string]time.Time{"o": observeFuture}}
	set, err := engine.Compile([]engine.Document{{Name: "d", Rules: []engine.Rule{
		{Name: "enforced", Action: engine.ActionAllow},
		{Name: "watched", Action: engine.ActionDeny, ObserveUntil: observeFuture},
	}}}, with)
	if err != nil {
		t.Fatal(err)
	}
	for server, want := range map[string]map[string]bool{"s": {"enforced": false, "watched": true}, "o": {"enforced": true, "watched": true}} {
		got := make(map[string]bool)
		for _, r := range set.Explain(engine.Call{Server: server, Tool: "t", Subject: person("ana"), Facts: callable}).Rules {
			got[r.Rule.Rule] = r.Observed
		}
		if diff := gocmp.Diff(want, got); diff != "" {
			t.Errorf("observed rules for server %s (-want +got):\n%s", server, diff)
		}
	}
}

// TestCacheability_ObservedRulesCount checks that rules in observe mode can also prevent a decision from being reused
// for calls with other arguments or in other sessions.
func TestCacheability_ObservedRulesCount(t *testing.T) {
	t.Parallel()
	with := options
	with.Now = observeNow
	limit := []engine.RateLimit{{Max: 1, Window: time.Minute, Per: []engine.Dimension{engine.PerSession}}}
	for name, tt := range map[string]struct {
		rule engine.Rule
		want engine.Cacheability
	}{
		"a rule that reads arguments": {engine.Rule{Name: "r", When: "args.n == 1", Action: engine.ActionDeny}, engine.Cacheability{}},
		"a rule that reads the time":  {engine.Rule{Name: "r", When: "now.getHours() < 6", Action: engine.ActionDeny}, engine.Cacheability{}},
		"a limit of sessions":         {engine.Rule{Name: "r", Limits: limit}, engine.Cacheability{Cacheable: true, BySession: true}},
		"an approval":                 {engine.Rule{Name: "r", Action: engine.ActionRequireApproval}, engine.Cacheability{Cacheable: true}},
		"a rule that hides":           {engine.Rule{Name: "r", Action: engine.ActionHide}, engine.Cacheability{Cacheable: true}},
	} {
		tt.rule.ObserveUntil = observeFuture
		set, err := engine.Compile([]engine.Document{{Name: "d", Default: engine.DefaultAllow, Rules: []engine.Rule{tt.rule}}}, with)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		call := engine.Call{Server: "s", Tool: "t", Subject: person("ana"), Facts: callable, Now: observeNow, Params: `{"arguments":{"n":1}}`}
		if got := set.Cacheability(call, set.Decide(call)); got != tt.want {
			t.Errorf("%s: %+v, want %+v", name, got, tt.want)
		}
	}
}

// A rule in observe mode has Strict and a timeout. The rule does not change the decision. If the arguments do not
// satisfy the schema, the observation says that the call would be refused.
func TestObserve_ChecksArgumentsWithoutEffect(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)
	until := now.Add(time.Hour)
	documents := []engine.Document{{Name: "d", Rules: []engine.Rule{
		{Tool: "write", Action: engine.ActionAllow},
		{Name: "strict", Match: engine.Match{Tool: []string{"write"}}, Strict: true, Timeout: time.Second, ObserveUntil: until},
	}}}
	options := engine.Options{SessionCap: 1, Times: engine.Times{Decide: time.Minute, Execute: time.Minute}, Now: now}
	onServer := []engine.Document{{Name: "d", Rules: []engine.Rule{{Tool: "write", Action: engine.ActionAllow, Strict: true, Timeout: time.Second}}}}
	ofServer := options
	ofServer.Observe = engine.Observe{Servers: map[string]time.Time{"files": until}}
	for name, tt := range map[string]struct {
		documents []engine.Document
		options   engine.Options
	}{"an observed rule": {documents, options}, "an observed server": {onServer, ofServer}} {
		set, err := engine.Compile(tt.documents, tt.options)
		if err != nil {
			t.Fatal(err)
		}
		call := engine.Call{
			Server: "files", Tool: "write", Params: `{"name":"write"}`, Facts: engine.Facts{Status: engine.Callable},
			Subject: engine.Subject{Caller: engine.Principal{Tenant: "default", Name: "ana"}},
		}
		if !set.ChecksArguments(call) {
			t.Errorf("%s: the arguments are not checked", name)
		}
		call.CheckArguments = func(string) error { return errors.New("path is missing") }
		got := set.Decide(call)
		if got.Effect != engine.Allow || got.Timeout != 0 || got.Observed == nil || got.Observed.Code != engine.TypeError {
			t.Errorf("%s: %+v, observed %+v, want the call to be allowed without a timeout, and type_error to be observed", name, got, got.Observed)
		}
		call.CheckArguments = func(string) error { return nil }
		if got := set.Decide(call); got.Effect != engine.Allow || got.Timeout != 0 || got.Observed != nil {
			t.Errorf("%s with valid arguments: %+v, want the call to be allowed and no observation", name, got)
		}
	}
}
