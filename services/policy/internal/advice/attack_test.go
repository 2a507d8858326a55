package advice_test

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	mcpv1 "github.com/sluice-mesh/sluice/gen/sluice/mcp/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/policy/internal/advice"
)

// Each ID belongs to the same attack as in earlier versions, because documentation and people refer to IDs.
func TestEntries_IDsAreStable(t *testing.T) {
	t.Parallel()
	want := []string{
		"AT01 Runaway loop", "AT02 Autonomous destruction", "AT03 Unwanted payment", "AT04 Silent overwrite", "AT05 Bulk effect",
		"AT06 Dangerous action in an argument", "AT07 Cap evasion", "AT08 Exfiltration through arguments", "AT09 Exfiltration through results",
		"AT10 Injection into code", "AT11 Indirect prompt injection", "AT12 Planted instructions", "AT13 Poisoned definition",
		"AT14 Changed definition", "AT15 Look-alike tool", "AT16 Understated definition", "AT17 Confused deputy", "AT18 Approval fatigue",
	}
	var got []string
	for _, e := range advice.Entries() {
		got = append(got, e.ID+" "+e.Name)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the catalog (-want +got):\n%s", diff)
	}
}

// reference matches the name of an entry of one of the two OWASP lists.
var reference = regexp.MustCompile(`^OWASP (MCP(0[1-9]|10):2025|ASI(0[1-9]|10)) [A-Z].+$`)

// Every entry has all texts and references. A reference to the same OWASP entry has the same name everywhere. Every
// entry except AT14 has a rule, and every rule loads.
func TestEntries_AreComplete(t *testing.T) {
	t.Parallel()
	names := make(map[string]string)
	for _, e := range advice.Entries() {
		for _, text := range []string{e.Happens, e.Stopped} {
			if !strings.HasSuffix(text, ".") || strings.ContainsAny(text, "\n\t") || strings.Contains(text, "  ") {
				t.Errorf("%s: these are no sentences: %q", e.ID, text)
			}
		}
		if len(e.References) == 0 || !slices.IsSorted(kinds(e.References)) {
			t.Errorf("%s: references %q", e.ID, e.References)
		}
		for _, r := range e.References {
			id, name, _ := strings.Cut(strings.TrimPrefix(r, "OWASP "), " ")
			if other, named := names[id]; !reference.MatchString(r) || named && other != name {
				t.Errorf("%s: %q is no reference, or another entry calls it %q", e.ID, r, other)
			}
			names[id] = name
		}
		if e.Rule == "" {
			if e.ID != "AT14" {
				t.Errorf("%s has no rule", e.ID)
			}
			continue
		}
		compiled(t, e.Rule)
		if want := "version: 1\nname: " + e.ID + "-" + strings.ToLower(strings.ReplaceAll(e.Name, " ", "-")) + "\n"; !strings.HasPrefix(e.Rule, want) {
			t.Errorf("%s: the rule begins otherwise than %q", e.ID, want)
		}
	}
}

// kinds changes references so that sorting them groups them by list: references to the OWASP MCP list come first.
func kinds(references []string) []string {
	out := make([]string, 0, len(references))
	for _, r := range references {
		out = append(out, strings.Replace(r, "OWASP MCP", "OWASP A", 1))
	}
	return out
}

func TestEntries_RulesLoadTogether(t *testing.T) {
	t.Parallel()
	var all []string
	for _, e := range advice.Entries() {
		if e.Rule != "" {
			all = append(all, e.Rule)
		}
	}
	compiled(t, all...)
}

func TestAttacks_MatchEntries(t *testing.T) {
	t.Parallel()
	entries, attacks := advice.Entries(), advice.Attacks()
	if len(entries) != len(attacks) {
		t.Fatalf("%d entries, %d attacks", len(entries), len(attacks))
	}
	for i, e := range entries {
		want := &policyv1.Attack{Id: e.ID, Name: e.Name, Description: e.Happens + " " + e.Stopped, References: e.References}
		if diff := cmp.Diff(want, attacks[i], protocmp.Transform()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", e.ID, diff)
		}
	}
	attacks[0].References[0], entries[0].References[0] = "x", "y"
	if second := advice.Entries()[0].References[0]; len(second) < 2 {
		t.Errorf("a caller has changed the catalog: %q", second)
	}
}

// classifications returns classifications that differ in the properties that determine which attacks are shown.
func classifications() []*policyv1.Classification {
	var out []*policyv1.Classification
	axes := []policyv1.Axis{policyv1.Axis_AXIS_UNSPECIFIED, policyv1.Axis_AXIS_LOW, policyv1.Axis_AXIS_MEDIUM, policyv1.Axis_AXIS_HIGH}
	for category := range mcpv1.Category(6) {
		for risk := range policyv1.Risk(5) {
			for i := range len(axes) * len(axes) * len(axes) {
				for _, tags := range [][]string{nil, {"hidden-text"}, {"depends-on-argument"}} {
					out = append(out, &policyv1.Classification{
						Category: category, Risk: risk, Confidence: float64(i%3) / 2, Tags: tags,
						Sensitivity: axes[i%4], OpenWorld: axes[i/4%4], BlastRadius: axes[i/16],
					})
				}
			}
		}
	}
	return out
}

// Each attack is shown for some tool, and every tool has from one to six different attacks.
func TestFor_EveryAttackIsShownForSomeTool(t *testing.T) {
	t.Parallel()
	shown := make(map[string]bool)
	for _, c := range append(classifications(), nil) {
		ids := exploited(c)
		if len(ids) == 0 || len(ids) > 6 || len(slices.Compact(slices.Sorted(slices.Values(ids)))) != len(ids) {
			t.Fatalf("%v: attacks %q", c, ids)
		}
		for _, id := range ids {
			shown[id] = true
		}
	}
	for _, e := range advice.Entries() {
		if !shown[e.ID] {
			t.Errorf("%s is shown with no tool", e.ID)
		}
	}
}

func exploited(c *policyv1.Classification) []string {
	var ids []string
	for _, a := range advice.For("server", "tool", c).GetAttacks() {
		ids = append(ids, a.GetId())
	}
	return ids
}

// Attacks that need exactly the kind of tool in question come first.
func TestFor_OrdersAttacksByRelevance(t *testing.T) {
	t.Parallel()
	const low, medium, high = policyv1.Axis_AXIS_LOW, policyv1.Axis_AXIS_MEDIUM, policyv1.Axis_AXIS_HIGH
	of := func(category mcpv1.Category, risk policyv1.Risk, sensitivity, openWorld, blastRadius policyv1.Axis) *policyv1.Classification {
		return &policyv1.Classification{Category: category, Risk: risk, Confidence: 0.9, Sensitivity: sensitivity, OpenWorld: openWorld, BlastRadius: blastRadius}
	}
	const read, write, execute, destructive, financial = mcpv1.Category_CATEGORY_READ, mcpv1.Category_CATEGORY_WRITE,
		mcpv1.Category_CATEGORY_EXECUTE, mcpv1.Category_CATEGORY_DESTRUCTIVE, mcpv1.Category_CATEGORY_FINANCIAL
	poisoned := of(read, 4, low, low, low)
	poisoned.Tags = []string{"speaks-to-the-model"}
	chosen := of(destructive, 4, low, low, low)
	chosen.DependsOnArgument = "/action"
	unsure := of(write, 2, low, low, low)
	unsure.Confidence = 0.49
	for _, tt := range []struct {
		name string
		c    *policyv1.Classification
		want string
	}{
		{"reads", of(read, 1, low, low, low), "AT01 AT11 AT14 AT15 AT16"},
		{"reads the web", of(read, 1, low, high, low), "AT11 AT08 AT01 AT14 AT15 AT16"},
		{"reads secrets", of(read, 2, high, low, low), "AT09 AT17 AT01 AT11 AT14 AT15"},
		{"writes", of(write, 2, low, medium, low), "AT01 AT04 AT12 AT07 AT08 AT14"},
		{"sends", of(write, 2, low, high, low), "AT08 AT01 AT04 AT12 AT07 AT14"},
		{"writes what may be ruined", of(write, 3, low, low, low), "AT04 AT01 AT12 AT07 AT14 AT15"},
		{"writes many", of(write, 3, low, low, high), "AT04 AT05 AT01 AT12 AT07 AT14"},
		{"runs", of(execute, 3, low, medium, low), "AT10 AT01 AT08 AT17 AT07 AT09"},
		{"removes", of(destructive, 4, low, low, low), "AT02 AT17 AT18 AT04 AT14 AT15"},
		{"pays", of(financial, 4, low, low, low), "AT03 AT07 AT17 AT18 AT01 AT14"},
		{"speaks to the model", poisoned, "AT13 AT18 AT01 AT11 AT14 AT15"},
		{"chosen by an argument", chosen, "AT02 AT06 AT17 AT18 AT04 AT14"},
		{"unsure", unsure, "AT16 AT01 AT04 AT12 AT07 AT14"},
		{"not known", nil, "AT16 AT02 AT03 AT04 AT05 AT08"},
	} {
		if got := fmt.Sprint(exploited(tt.c)); got != "["+tt.want+"]" {
			t.Errorf("a tool that %s has the attacks %s, want [%s]", tt.name, got, tt.want)
		}
	}
}
