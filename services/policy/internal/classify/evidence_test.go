package classify_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/policy/internal/classify"
)

// matchesPath reports whether the quote of a piece of evidence occurs in the definition at the path of the evidence.
func matchesPath(tool classify.Tool, e *policyv1.Evidence) bool {
	if e.GetCategory() == 0 { // evidence without a category can be in any text
		return slices.ContainsFunc(tool.Texts, func(one classify.Text) bool {
			return one.InKey == e.GetInKey() && strings.HasPrefix(one.Value[min(int(e.GetOffset()), len(one.Value)):], e.GetQuote()) && e.GetQuote() != ""
		})
	}
	var text string
	steps := strings.Split(strings.TrimPrefix(e.GetPath(), "/"), "/")
	switch {
	case e.GetInKey():
		text = strings.NewReplacer("~1", "/", "~0", "~").Replace(steps[len(steps)-1])
	case e.GetPath() == "/name":
		text = tool.Name
	case e.GetPath() == "/description":
		text = tool.Description
	case steps[0] == "annotations":
		raw, err := json.Marshal(tool.Hints[steps[1]])
		text = string(raw)
		if err != nil {
			return false
		}
	}
	return int(e.GetOffset()) <= len(text) && strings.HasPrefix(text[e.GetOffset():], e.GetQuote()) && e.GetQuote() != ""
}

// checkClassification checks the invariants of every classification.
func checkClassification(t *testing.T, tool classify.Tool, trusted bool) {
	t.Helper()
	got := classify.Classify(tool, trusted)
	if got.GetCategory() == 0 || got.GetRisk() == 0 || got.GetConfidence() < 0 || got.GetConfidence() > 1 {
		t.Errorf("%q is %v", tool.Name, got)
	}
	for _, e := range got.GetEvidence() {
		if !matchesPath(tool, e) || e.GetMeaning() == "" || e.GetWeight() <= 0 || e.GetWeight() > 1 {
			t.Errorf("%q: this evidence does not stand there: %v", tool.Name, e)
		}
	}
	if second := classify.Classify(tool, trusted); second.String() != got.String() {
		t.Errorf("%q is once %v, and once %v", tool.Name, got, second)
	}
}

// TestClassify_EvidenceIsAtItsPath checks that every quote occurs in the definition at the path of the evidence.
func TestClassify_EvidenceIsAtItsPath(t *testing.T) {
	t.Parallel()
	for _, tool := range tools(t, "lists") {
		checkClassification(t, tool, false)
		checkClassification(t, tool, true)
	}
}

func FuzzClassify(f *testing.F) {
	for _, tool := range tools(f, "lists") {
		raw, err := json.Marshal(map[string]any{"name": tool.Name, "description": tool.Description, "annotations": tool.Hints})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	f.Add([]byte(`{"name":"a/~b","description":"Ünïcödé İ is not undone: NOT PERMANENTLY","inputSchema":{"properties":{"a/~":{"enum":["delete","get"]},"command":{},"action":{"enum":["delete","get"]}},"required":["command"]}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		tool, err := classify.Read(jsontext.Value(raw))
		if err != nil {
			return
		}
		checkClassification(t, tool, false)
		checkClassification(t, tool, true)
	})
}
