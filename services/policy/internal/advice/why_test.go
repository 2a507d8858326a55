package advice_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	mcpv1 "github.com/sluice-mesh/sluice/gen/sluice/mcp/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/policy/internal/advice"
	"github.com/sluice-mesh/sluice/services/policy/internal/classify"
)

// listed returns the classifications of the real tools that are used to test the classifier.
func listed(t *testing.T) map[string]*policyv1.Classification {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("..", "classify", "testdata", "*", "*.json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%d lists: %v", len(files), err)
	}
	out := make(map[string]*policyv1.Classification)
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var list struct {
			Tools []jsontext.Value `json:"tools"`
		}
		if err := json.Unmarshal(raw, &list); err != nil {
			t.Fatal(err)
		}
		for _, one := range list.Tools {
			tool, err := classify.Read(one)
			if err != nil {
				t.Fatal(err)
			}
			out[tool.Name] = classify.Classify(tool, false)
		}
	}
	return out
}

// TestFor_WhyForRealTools checks the explanations of why three real tools need a policy.
func TestFor_WhyForRealTools(t *testing.T) {
	t.Parallel()
	tools := listed(t)
	for tool, want := range map[string]string{
		"wasm_agent_export": "This tool writes: it creates or changes something. From the tool's definition: the description says that it will export (\"Export\"); " +
			"the name says that it will export (\"export\"). As far as its definition tells, it does not run code (not Execute), does not delete data (not Destructive) " +
			"and does not move money (not Financial). What comes back can be personal or internal. Its effect can be taken back. " +
			"A policy should limit how often it is called: many small changes make a large one.",
		"wasm_agent_todos": "This tool reads: it retrieves something and leaves nothing changed. From the tool's definition: the description says that it will get (\"Get\"). " +
			"As far as its definition tells, it does not change data (not Write), does not run code (not Execute), does not delete data (not Destructive) " +
			"and does not move money (not Financial). A policy can let it pass.",
		"wasm_agent_is_stopped": "This tool reads: it retrieves something and leaves nothing changed. From the tool's definition: the description says that it will check (\"Check\"); " +
			"the name asks whether something is true (\"is\"). As far as its definition tells, it does not change data (not Write), does not run code (not Execute), " +
			"does not delete data (not Destructive) and does not move money (not Financial). A policy can let it pass.",
	} {
		if diff := cmp.Diff(want, advice.For("claude-flow", tool, tools[tool]).GetWhy()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tool, diff)
		}
	}
}

// The explanation contains a sentence for each property of a tool. It says that a tool does not do something only if
// the classification supports this statement.
func TestFor_WhyHasASentenceForEachFact(t *testing.T) {
	t.Parallel()
	const read, write, execute, destructive, financial = mcpv1.Category_CATEGORY_READ, mcpv1.Category_CATEGORY_WRITE,
		mcpv1.Category_CATEGORY_EXECUTE, mcpv1.Category_CATEGORY_DESTRUCTIVE, mcpv1.Category_CATEGORY_FINANCIAL
	const high = policyv1.Axis_AXIS_HIGH
	removes := &policyv1.Evidence{Category: destructive, Quote: "clears", Meaning: "the description says that it will clear", Weight: 0.3}
	for _, tt := range []struct {
		name          string
		c             *policyv1.Classification
		want, without string
	}{
		{"nothing known", nil, "It is not known what this tool does", "not Destructive"},
		{"unsure", &policyv1.Classification{Category: read, Risk: 1, Confidence: 0.3}, "The category is uncertain", "not Destructive"},
		{"sure", &policyv1.Classification{Category: read, Risk: 1, Confidence: 0.5}, "(not Destructive)", "not sure"},
		{"something speaks for worse", &policyv1.Classification{Category: read, Risk: 1, Confidence: 0.8, Evidence: []*policyv1.Evidence{removes}},
			`Weaker evidence speaks for Destructive: the description says that it will clear ("clears").`, "not Destructive"},
		{"runs", &policyv1.Classification{Category: execute, Risk: 3, Confidence: 0.8}, "This tool executes", "not Destructive"},
		{"removes", &policyv1.Classification{Category: destructive, Risk: 4, Confidence: 0.8}, "it does not move money (not Financial).", "not Destructive"},
		{"pays", &policyv1.Classification{Category: financial, Risk: 4, Confidence: 0.8}, "This tool deals with money", "As far as"},
		{"speaks", &policyv1.Classification{Category: read, Risk: 4, Confidence: 0.8, Tags: []string{"speaks-to-the-model"}}, "what to do or what to hide", "not Destructive"},
		{"hides", &policyv1.Classification{Category: read, Risk: 4, Confidence: 0.8, Tags: []string{"hidden-text"}}, "invisible characters", "not Destructive"},
		{"tagged", &policyv1.Classification{Category: read, Risk: 1, Confidence: 0.8, Tags: []string{"pii", "eu"}}, "It is tagged pii, eu.", "argument"},
		{"chosen", &policyv1.Classification{Category: read, Risk: 1, Confidence: 0.8, DependsOnArgument: "/action"}, `depends on its argument "/action"`, "tagged"},
		{"chosen by something", &policyv1.Classification{Category: read, Risk: 1, Confidence: 0.8, Tags: []string{"depends-on-argument"}}, "depends on an argument", "tagged"},
		{"secrets", &policyv1.Classification{Category: read, Risk: 2, Confidence: 0.8, Sensitivity: high}, "What comes back can be secret", "personal"},
		{"so its risk", &policyv1.Classification{Category: read, Risk: 2, Confidence: 0.8, Sensitivity: high}, "Its risk is Medium, and not Low as that of most Read tools.", "touch much"},
		{"outside", &policyv1.Classification{Category: read, Risk: 1, Confidence: 0.8, OpenWorld: high}, "reaches outside its own server", "Its risk"},
		{"touches much", &policyv1.Classification{Category: write, Risk: 3, Confidence: 0.8, BlastRadius: high, Irreversibility: 1}, "One call can touch much at once.", "taken back"},
		{"reads much", &policyv1.Classification{Category: read, Risk: 1, Confidence: 0.8, BlastRadius: high}, "reads", "touch much"},
		{"may ruin", &policyv1.Classification{Category: write, Risk: 3, Confidence: 0.8}, "Its risk is High", "not Destructive"},
		{"back", &policyv1.Classification{Category: write, Risk: 2, Confidence: 0.8, Irreversibility: 1}, "Its effect can be taken back.", "hard"},
		{"hardly back", &policyv1.Classification{Category: write, Risk: 2, Confidence: 0.8, Irreversibility: 2}, "Its effect is hard to take back.", "can be taken"},
		{"never back", &policyv1.Classification{Category: write, Risk: 2, Confidence: 0.8, Irreversibility: 3}, "Its effect can't be taken back.", "can be taken"},
		{"risk not known", &policyv1.Classification{Category: write, Confidence: 0.8}, "so the highest risk is assumed", "Unspecified"},
	} {
		got := advice.For("s", "t", tt.c).GetWhy()
		if !strings.Contains(got, tt.want) || strings.Contains(got, tt.without) {
			t.Errorf("%s: it says %q\nwant %q and nothing of %q", tt.name, got, tt.want, tt.without)
		}
	}
}

// Even if a server's strings are hostile, the explanation is one line of limited length and contains only printable
// characters.
func TestFor_WhyQuotesHostileTexts(t *testing.T) {
	t.Parallel()
	hostile := strings.Repeat("é\x1b[2J\n\u202e\u2028\xff ", 1000)
	c := &policyv1.Classification{
		Category: mcpv1.Category_CATEGORY_READ, Risk: 1, Confidence: 0.9, DependsOnArgument: "/" + hostile, Tags: []string{"a\nb"},
		Evidence: []*policyv1.Evidence{{Category: mcpv1.Category_CATEGORY_READ, Quote: hostile, Meaning: "a\x1b[2J"}, {Category: mcpv1.Category_CATEGORY_WRITE, Quote: strings.Repeat("\xa0", 500), Meaning: "b"}},
	}
	checkLine(t, advice.For("s", "t", c).GetWhy())
	if got := advice.For("s", "t", c).GetWhy(); len(got) > 4096 {
		t.Errorf("the text has %d bytes", len(got))
	}
}

func checkLine(t *testing.T, text string) {
	t.Helper()
	if !utf8.ValidString(text) || strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) || !strings.HasSuffix(text, ".") || strings.Contains(text, "  ") {
		t.Errorf("this is no line of sentences: %q", text)
	}
}

// The advice on real tools is complete, and is the same every time.
func TestFor_RealTools(t *testing.T) {
	t.Parallel()
	for tool, c := range listed(t) {
		got := advice.For("server", tool, c)
		checkLine(t, got.GetWhy())
		compiled(t, got.GetRecommendedRule())
		if len(got.GetAttacks()) == 0 || len(got.GetAttacks()) > 6 {
			t.Errorf("%s has %d attacks", tool, len(got.GetAttacks()))
		}
		if diff := cmp.Diff(got, advice.For("server", tool, c), protocmp.Transform()); diff != "" {
			t.Errorf("%s: once so, and once otherwise:\n%s", tool, diff)
		}
	}
}
