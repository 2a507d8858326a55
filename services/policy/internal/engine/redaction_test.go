package engine_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
)

func redacts(target engine.RedactionTarget, texts ...string) (out []engine.Redaction) {
	for _, text := range texts {
		one := engine.Redaction{Target: target, Detector: text}
		if strings.HasPrefix(text, "/") {
			one.Path, one.Detector = text, ""
		}
		out = append(out, one)
	}
	return out
}

func textsOf(d engine.Decision) (out []string) {
	for _, r := range d.Redactions {
		out = append(out, r.Rule.Rule+" "+r.String())
	}
	return out
}

func TestDecide_RedactionsOfAllRulesApply(t *testing.T) {
	t.Parallel()
	set := compileRules(t,
		engine.Rule{Tool: "t", Action: engine.ActionAllow, Redactions: redacts(engine.RedactResults, "email", "/a")},
		engine.Rule{Tool: "ask", Action: engine.ActionRequireApproval},
		engine.Rule{Name: "all", Redactions: redacts(engine.RedactResults, "email", "secrets")},
		engine.Rule{Name: "arguments", Redactions: redacts(engine.RedactArguments, "email")},
		engine.Rule{Name: "true", When: "args.n == 1", Redactions: redacts(engine.RedactResults, "/true")},
		engine.Rule{Name: "others", Match: engine.Match{Principal: []string{"ben"}}, Redactions: redacts(engine.RedactResults, "/ben")},
	)
	for name, tt := range map[string]struct {
		tool, params string
		want         []string
	}{
		"condition true":  {"t", `{"arguments":{"n":1}}`, []string{"all results: email", "all results: secrets", "arguments arguments: email", "tools.t results: /a", "true results: /true"}},
		"condition false": {"t", `{"arguments":{"n":2}}`, []string{"all results: email", "all results: secrets", "arguments arguments: email", "tools.t results: /a"}},
		"condition error": {"t", `{"arguments":{}}`, []string{"all results: email", "all results: secrets", "arguments arguments: email", "tools.t results: /a", "true results: /true"}},
		"approval":        {"ask", `{"arguments":{"n":2}}`, []string{"all results: email", "all results: secrets", "arguments arguments: email"}},
		"denied":          {"other", `{"arguments":{"n":1}}`, nil},
	} {
		call := callOf(tt.tool)
		call.Params = tt.params
		if diff := cmp.Diff(tt.want, textsOf(set.Decide(call))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	chained := callOf("t")
	chained.Params = `{"arguments":{"n":2}}`
	chained.Subject.Chain = []engine.Principal{{Tenant: "default", Name: "ben"}}
	if got := textsOf(set.Decide(chained)); !strings.Contains(strings.Join(got, "; "), "others results: /ben") {
		t.Errorf("the redactions for a principal of the chain are missing: %v", got)
	}
}

func TestDecide_ObservedRedactionsAreNotMade(t *testing.T) {
	t.Parallel()
	now := time.Now()
	observed := options
	observed.Now = now
	rules := []engine.Rule{
		{Tool: "t", Action: engine.ActionAllow, Redactions: redacts(engine.RedactResults, "email")},
		{Name: "observed", Redactions: redacts(engine.RedactResults, "secrets"), ObserveUntil: now.Add(time.Hour)},
	}
	set, err := engine.Compile([]engine.Document{{Name: "d", Server: "s", Default: engine.DefaultDeny, Rules: rules}}, observed)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"tools.t results: email"}, textsOf(set.Decide(callOf("t")))); diff != "" {
		t.Error(diff)
	}
	observed.Observe.Servers = map[string]time.Time{"s": now.Add(time.Hour)}
	if set, err = engine.Compile([]engine.Document{{Name: "d", Server: "s", Default: engine.DefaultDeny, Rules: rules}}, observed); err != nil {
		t.Fatal(err)
	}
	if got := textsOf(set.Decide(callOf("t"))); got != nil {
		t.Errorf("on an observed server: %v", got)
	}
}

// A redaction of a rule changes. The digest of the rule, the revision and the decision change too.
func TestCompare_RedactionsAreADifference(t *testing.T) {
	t.Parallel()
	document := func(list []engine.Redaction) []engine.Document {
		return []engine.Document{{Name: "d", Server: "s", Default: engine.DefaultDeny, Rules: []engine.Rule{{Tool: "t", Action: engine.ActionAllow, Redactions: list}}}}
	}
	one := redacts(engine.RedactResults, "email", "card")
	before, same, err := engine.CompilePair(document(one), document(redacts(engine.RedactResults, "card", "email")), options)
	if err != nil {
		t.Fatal(err)
	}
	if before.Revision() != same.Revision() {
		t.Error("the order of the redactions changes the revision")
	}
	before, after, err := engine.CompilePair(document(one), document(one[:1]), options)
	if err != nil {
		t.Fatal(err)
	}
	if before.Revision() == after.Revision() || before.Decide(callOf("t")).RuleDigest == after.Decide(callOf("t")).RuleDigest {
		t.Error("a redaction is not part of the revision")
	}
	if changes, complete := engine.Compare(before, after, callOf("t")); len(changes) != 1 || !complete {
		t.Errorf("%+v, %v", changes, complete)
	}
}

func TestDecide_TooManyRedactionsRefuse(t *testing.T) {
	t.Parallel()
	rules := []engine.Rule{{Tool: "t", Action: engine.ActionAllow}}
	for i := range 5 {
		var paths []string
		for j := range engine.MaxRuleRedactions {
			paths = append(paths, "/"+strings.Repeat("a", i+1)+"/"+strings.Repeat("b", j+1))
		}
		rules = append(rules, engine.Rule{Name: "r" + strings.Repeat("x", i), Redactions: redacts(engine.RedactResults, paths...)})
	}
	d := compileRules(t, rules...).Decide(callOf("t"))
	if d.Effect != engine.Deny || d.Code != engine.DeniedByRule || d.Redactions != nil || !strings.Contains(d.Message, "more redactions") {
		t.Errorf("%+v", d)
	}
}
