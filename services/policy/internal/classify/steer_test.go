package classify_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/policy/internal/classify"
)

// steered returns a definition with the given text at a location. The parameter at is the name of the location, which
// is a place where a server can put text.
func steered(t testing.TB, at, text string) classify.Tool {
	t.Helper()
	a := map[string]any{"type": "number", "description": "The first number."}
	definition := map[string]any{"name": "add", "title": "Add", "description": "Adds two numbers.", "inputSchema": map[string]any{
		"type": "object", "properties": map[string]any{"a": a},
	}}
	switch at {
	case "description":
		definition["description"] = "Adds two numbers. " + text
	case "parameter":
		a["description"] = text
	case "title":
		definition["title"] = text
	case "enum":
		a["enum"] = []any{"1", text}
	case "default":
		a["default"] = text
	case "output":
		definition["outputSchema"] = map[string]any{"properties": map[string]any{"sum": map[string]any{"description": text}}}
	case "key":
		definition["_meta"] = map[string]any{text: 1}
	default:
		t.Fatalf("no text stands at %q", at)
	}
	raw, err := json.Marshal(definition)
	if err != nil {
		t.Fatal(err)
	}
	tool, err := classify.Read(raw)
	if err != nil {
		t.Fatal(err)
	}
	return tool
}

// steering returns the lines of a file with example texts. Each line consists of a language, a location and a text.
func steering(t testing.TB, file string) (out [][3]string) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("testdata", file))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(raw)) {
		parts := strings.SplitN(strings.TrimSuffix(line, "\n"), "\t", 3)
		out = append(out, [3]string(parts))
	}
	return out
}

// waits reports whether the definition would have to wait for an operator because of its tags.
func waits(c *policyv1.Classification) bool {
	return c.GetRisk() == policyv1.Risk_RISK_CRITICAL &&
		(slices.Contains(c.GetTags(), "speaks-to-the-model") || slices.Contains(c.GetTags(), "hidden-text"))
}

// Case T7. Texts that instruct the model are found at each location of a definition, in ten languages.
func TestClassify_SteeringTextsAreTagged(t *testing.T) {
	t.Parallel()
	all := steering(t, "steering.tsv")
	for _, one := range all {
		for _, at := range []string{one[1], "description", "parameter", "title", "enum", "default", "output", "key"} {
			tool := steered(t, at, one[2])
			c := classify.Classify(tool, true)
			if !waits(c) {
				t.Errorf("%s, in the %s: %s", one[0], at, one[2])
			}
			if !slices.ContainsFunc(c.GetEvidence(), func(e *policyv1.Evidence) bool { return e.GetCategory() == 0 && matchesPath(tool, e) }) {
				t.Errorf("%s, in the %s: no evidence says why: %s", one[0], at, one[2])
			}
		}
	}
	if len(all) < 60 {
		t.Errorf("the corpus has %d texts, want 60", len(all))
	}
}

// TestClassify_FindsMostLaterSteeringTexts uses texts that were written after the steering forms, by people who did not
// know the forms. docs/decisions/0028-tool-definition-pinning.md states how many of these texts were found at first.
func TestClassify_FindsMostLaterSteeringTexts(t *testing.T) {
	t.Parallel()
	all := steering(t, "steering_later.tsv")
	found := 0
	for _, one := range all {
		if waits(classify.Classify(steered(t, one[1], one[2]), true)) {
			found++
		} else {
			t.Logf("not found: %s, %s: %s", one[0], one[1], one[2])
		}
	}
	t.Logf("%d of %d are found", found, len(all))
	if found < 30 {
		t.Errorf("%d of %d are found", found, len(all))
	}
}

// TestClassify_RealToolsAreRarelyTagged checks that at most 0.5 % of the labelled real tools are tagged because of
// their texts. Many of these tools say "you must call X first" or "before using this tool".
func TestClassify_RealToolsAreRarelyTagged(t *testing.T) {
	t.Parallel()
	all, waiting := 0, 0
	for _, set := range []string{"lists", "heldout", "third", "fourth", "fifth", "sixth", "seventh", "eighth"} {
		for key, tool := range tools(t, set) {
			all++
			if c := classify.Classify(tool, false); waits(c) {
				waiting++
				for _, e := range c.GetEvidence() {
					if e.GetCategory() == 0 {
						t.Logf("%v waits: %s: %q", key, e.GetMeaning(), e.GetQuote())
					}
				}
			}
		}
	}
	t.Logf("%d of %d wait", waiting, all)
	if 200*waiting > all {
		t.Errorf("%d of %d real tools wait", waiting, all)
	}
}

// TestClassify_LongDefinitionIsTaggedAndBounded checks a definition that has more text than is searched. The definition
// must be tagged, and the evidence must show where the search ended.
func TestClassify_LongDefinitionIsTaggedAndBounded(t *testing.T) {
	t.Parallel()
	examples := make([]any, 4000)
	for i := range examples {
		examples[i] = fmt.Sprintf("%d: a rule, an instruction or a message before each other server that you tell the user of", i)
	}
	raw, err := json.Marshal(map[string]any{"name": "add", "description": "Adds two numbers.", "_meta": map[string]any{"x": examples}})
	if err != nil {
		t.Fatal(err)
	}
	tool, err := classify.Read(raw)
	if err != nil {
		t.Fatal(err)
	}
	c := classify.Classify(tool, true)
	quoted := slices.ContainsFunc(c.GetEvidence(), func(e *policyv1.Evidence) bool {
		return strings.Contains(e.GetMeaning(), "not looked at") && matchesPath(tool, e)
	})
	if !waits(c) || !quoted {
		t.Errorf("it is %v", c)
	}
}
