package engine_test

import (
	"maps"
	"slices"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
)

// TestCacheability_DecisionHoldsForAlikeCalls checks that if the decision on a call may be reused for other calls,
// these calls get the same decision.
func TestCacheability_DecisionHoldsForAlikeCalls(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		set, call := drawSet(t), drawCall(t)
		d := set.Decide(call)
		cacheability := set.Cacheability(call, d)
		if !cacheability.Cacheable {
			if cacheability.BySession {
				t.Fatal("BySession is true although the decision is not cacheable")
			}
			return
		}
		if d.Effect == engine.RequireApproval || d.Hidden || d.Code == engine.ToolUnknown {
			t.Fatalf("%+v is cacheable", d)
		}
		other := call
		other.Params = rapid.SampledFrom(slices.Sorted(maps.Keys(someParams))).Draw(t, "other params")
		if !cacheability.BySession {
			other.Subject.Chain = slices.Clone(call.Subject.Chain)
			for i := range other.Subject.Chain {
				other.Subject.Chain[i].Run = rapid.SampledFrom([]string{"", "1", "2"}).Draw(t, "other run in the chain")
			}
			other.Subject.Caller.Run = rapid.SampledFrom([]string{"", "1", "2"}).Draw(t, "other run")
			other.Subject.Caller.Session = rapid.SampledFrom([]string{"", "s"}).Draw(t, "other session")
		}
		if diff := gocmp.Diff(d, set.Decide(other)); diff != "" {
			t.Fatalf("another call has a different decision (-first +other):\n%s", diff)
		}
	})
}

func TestCacheability(t *testing.T) {
	t.Parallel()
	rules := func(rules ...engine.Rule) []engine.Document {
		return []engine.Document{{Name: "d", Server: "s", Default: engine.DefaultDeny, Rules: rules}}
	}
	ask := engine.Rule{Tool: "t", Action: engine.ActionRequireApproval}
	where := engine.Rule{Name: "granted", Match: engine.Match{Tool: []string{"t"}, Principal: []string{"zed"}}, Action: engine.ActionRequireApproval, Grant: engine.Grant{Calls: 1, Within: 60e9, Where: "args.n == 1"}}
	limited := func(per ...engine.Dimension) engine.Rule {
		return engine.Rule{Tool: "t", Action: engine.ActionAllow, Limits: []engine.RateLimit{{Max: 1, Window: 60e9, Per: per}}}
	}
	for name, tt := range map[string]struct {
		documents []engine.Document
		standing  engine.Status
		want      engine.Cacheability
	}{
		"allowed":                        {rules(engine.Rule{Tool: "t", Action: engine.ActionAllow}), engine.Callable, engine.Cacheability{Cacheable: true}},
		"denied":                         {rules(engine.Rule{Tool: "t", Action: engine.ActionDeny}), engine.Callable, engine.Cacheability{Cacheable: true}},
		"denied by default":              {rules(), engine.Callable, engine.Cacheability{Cacheable: true}},
		"limited by principal":           {rules(limited(engine.PerPrincipal)), engine.Callable, engine.Cacheability{Cacheable: true}},
		"limited by session":             {rules(limited(engine.PerTool, engine.PerSession)), engine.Callable, engine.Cacheability{Cacheable: true, BySession: true}},
		"requires approval":              {rules(ask), engine.Callable, engine.Cacheability{}},
		"hidden":                         {rules(engine.Rule{Tool: "t", Action: engine.ActionHide}), engine.Callable, engine.Cacheability{}},
		"a condition may be looked at":   {rules(engine.Rule{Tool: "t", Action: engine.ActionAllow}, where), engine.Callable, engine.Cacheability{}},
		"the definition is not accepted": {rules(engine.Rule{Tool: "t", Action: engine.ActionAllow}), engine.Changed, engine.Cacheability{}},
		"stopped":                        {rules(engine.Rule{Tool: "t", Action: engine.ActionDeny}), engine.Quarantined, engine.Cacheability{}},
		"not listed":                     {rules(engine.Rule{Tool: "t", Action: engine.ActionAllow}), engine.Unlisted, engine.Cacheability{}},
	} {
		set, err := engine.Compile(tt.documents, options)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		call := engine.Call{Server: "s", Tool: "t", Subject: engine.Subject{Caller: engine.Principal{Tenant: "default", Name: "ana"}}, Facts: engine.Facts{Status: tt.standing}}
		if got := set.Cacheability(call, set.Decide(call)); got != tt.want {
			t.Errorf("%s: %+v, want %+v", name, got, tt.want)
		}
	}
}
