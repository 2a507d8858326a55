package advice_test

import (
	"math"
	"regexp"
	"strings"
	"testing"
	"time"

	mcpv1 "github.com/sluice-mesh/sluice/gen/sluice/mcp/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/policy/internal/advice"
	"github.com/sluice-mesh/sluice/services/policy/internal/document"
	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
)

// The reason that the rule gives for requiring approval says which effect the tool may have, even if the classification
// is uncertain.
func TestRule_ReasonNamesWhatTheToolMayDo(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		category   mcpv1.Category
		risk       policyv1.Risk
		confidence float64
		want       string
	}{
		{4, 4, 1, "it removes or overwrites for good"},
		{4, 4, 0.3, "it may remove or overwrite for good"},
		{5, 4, 1, "it moves money"},
		{5, 4, 0.3, "it may move money"},
		{2, 3, 1, "it can change much or for good"},
		{2, 2, 0.3, "its definition leaves open what it does"},
		{0, 0, 0, "its definition leaves open what it does"},
	} {
		c := &policyv1.Classification{Category: tt.category, Risk: tt.risk, Confidence: tt.confidence}
		if got, want := advice.Rule(c), "{action: require_approval, reason: "+tt.want+"}"; got != want {
			t.Errorf("category %v, confidence %v: %s, want %s", tt.category, tt.confidence, got, want)
		}
	}
}

func TestRule_LimitsCallsOrRequiresApproval(t *testing.T) {
	t.Parallel()
	const ask = -1
	for _, tt := range []struct {
		name       string
		category   mcpv1.Category
		risk       policyv1.Risk
		confidence float64
		want       int64 // 0: no limit
	}{
		{"read", 1, 1, 1, 0},
		{"read, of secrets", 1, 2, 0.5, 0},
		{"write", 2, 2, 1, 30},
		{"write, of much", 2, 3, 1, ask},
		{"write, of medium risk", 2, 2, 0.5, 30},
		{"execute", 3, 3, 1, 10},
		{"destructive", 4, 4, 1, ask},
		{"financial", 5, 4, 1, ask},
		{"destructive, by a person's word low", 4, 1, 1, ask},
		{"read, critical", 1, 4, 1, ask},
		{"write, critical", 2, 4, 1, ask},
		{"execute, critical", 3, 4, 1, ask},
		{"read, risk not known", 1, 0, 1, ask},
		{"read, unsure", 1, 1, 0.49, ask},
		{"read, confidence no number", 1, 1, math.NaN(), ask},
		{"not known", 0, 0, 0, ask},
		{"of an unknown category", 99, 1, 1, ask},
	} {
		c := &policyv1.Classification{Category: tt.category, Risk: tt.risk, Confidence: tt.confidence}
		set := compiled(t, advice.For("notes", "tool", c).GetRecommendedRule())
		call := engine.Call{
			Server: "notes", Tool: "tool", Subject: engine.Subject{Caller: engine.Principal{Tenant: "t", Name: "ana", Session: "s"}},
			Facts: engine.Facts{Status: engine.Callable},
		}
		d := set.Decide(call)
		got := int64(ask)
		if d.Effect == engine.Allow {
			got = 0
			for _, l := range d.Limits {
				if !l.Cap && l.Window == time.Minute {
					got = l.Max
				}
			}
		}
		if d.Effect == engine.Deny || got != tt.want || got == ask && d.Message == "" {
			t.Errorf("%s: %v with a limit of %d and the reason %q, want %d", tt.name, d.Effect, got, d.Message, tt.want)
		}
		call.Tool = "other"
		if other := set.Decide(call); other.Code != engine.DeniedByDefault || !strings.HasPrefix(set.Explain(call).Why, "No rule with an action matches the caller, and no document") {
			t.Errorf("%s: of another tool it says %v", tt.name, other)
		}
	}
}

// tricky lists names that a YAML parser could parse as something other than a string.
var tricky = []string{
	"no", "No", "y", "N", "on", "OFF", "yes", "true", "False", "null", "Null", "nan", ".nan", ".inf", "-.inf", "Infinity", "1e3", "0x1f", "0o7", "1_000", "12",
	"-1", "1.5", ".", "..", "-", "--", "---", "...", "a/b", "/", "a.b", "-a", "_", "_a", "a-", "2024-01-01", "name", "action", "tools", "e", strings.Repeat("a", 128),
}

// The recommended documents for all tools can be active together, whatever the tools are named.
func TestFor_RulesOfAllToolsLoadTogether(t *testing.T) {
	t.Parallel()
	var all []string
	for _, server := range []string{"a", "a-b", "-", "no", "1e3", "0", "null", strings.Repeat("s", 32)} {
		for _, tool := range tricky {
			all = append(all, advice.For(server, tool, nil).GetRecommendedRule())
		}
	}
	compiled(t, all...)
}

func TestQuoted(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"get_note": "get_note", "a-b": "a-b", "a.b": `"a.b"`, "a/b": `"a/b"`, "no": `"no"`, "NULL": `"NULL"`, "1e3": `"1e3"`, "": `""`, "-": `"-"`, "_": `"_"`,
		"a\nb: c": `"a\nb: c"`, `"`: `"\""`, "é": `"\u00e9"`, "nope": "nope",
	} {
		if got := advice.Quoted(text); got != want {
			t.Errorf("%q is written %s, want %s", text, got, want)
		}
	}
}

// FuzzFor_RecommendedRuleLoads checks that for all valid names of a server and a tool there is a recommended rule that
// loads without warnings and matches only that tool. For invalid names there must be no rule.
func FuzzFor_RecommendedRuleLoads(f *testing.F) {
	for _, tool := range tricky {
		f.Add("claude-flow", tool, int32(2), int32(2), 1.0)
		f.Add("-", tool, int32(4), int32(4), 0.2)
	}
	for _, name := range []string{"", "a b", "a\n", "é", "a:", "*", strings.Repeat("a", 129), "a\x00", "a#", "\xff"} {
		f.Add("notes", name, int32(1), int32(1), 0.9)
		f.Add(name, "get", int32(3), int32(3), 0.9)
	}
	servers, tools := regexp.MustCompile(`\A[a-z0-9-]{1,32}\z`), regexp.MustCompile(`\A[A-Za-z0-9_./-]{1,128}\z`)
	f.Fuzz(func(t *testing.T, server, tool string, category, risk int32, confidence float64) {
		c := &policyv1.Classification{Category: mcpv1.Category(category), Risk: policyv1.Risk(risk), Confidence: confidence}
		text := advice.For(server, tool, c).GetRecommendedRule()
		if !servers.MatchString(server) || !tools.MatchString(tool) {
			if text != "" {
				t.Fatalf("%q of %q has the rule\n%s", tool, server, text)
			}
			return
		}
		set, err := document.ParseSet([]document.File{{Text: []byte(text)}}, nil, time.Now())
		if err != nil {
			t.Fatalf("%q of %q: %v\n%s", tool, server, err, text)
		}
		d := set.Documents[0]
		if len(set.Warnings) > 0 || d.Server != server || len(d.Rules) != 1 || d.Rules[0].Tool != tool || d.Rules[0].Action < engine.ActionAllow {
			t.Errorf("%q of %q: %v, %+v\n%s", tool, server, set.Warnings, d, text)
		}
	})
}
