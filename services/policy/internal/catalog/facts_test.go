package catalog_test

import (
	"testing"

	mcpv1 "github.com/sluice-mesh/sluice/gen/sluice/mcp/v1"
	"github.com/sluice-mesh/sluice/services/policy/internal/catalog"
)

// The classification of the tool x is uncertain. After an operator sets the category, the facts say that it is certain.
// The rule `default: by_risk` depends on these facts.
func TestFacts_UncertainToolIsSureWhenAnOperatorSetTheClass(t *testing.T) {
	t.Parallel()
	s := newFixture(t, first)
	clear, vague := tool("get_note", "Get a note."), tool("x", "Frobnicate the note.")
	s.report(whole, clear, vague)
	set := catalog.Settings{Mode: catalog.FirstUse}
	digest := func(name string) []byte { return s.server.Tools[name].Definitions[0].Digest[:] }
	if !s.server.Facts("get_note", digest("get_note"), set).Sure || s.server.Facts("x", digest("x"), set).Sure {
		t.Error("Sure is true for the vague tool, or false for the clear one")
	}
	class, err := s.server.SetOverride("x", &catalog.Override{Category: mcpv1.Category_CATEGORY_READ, Reason: "seen", Author: "ana"}, s.server.Tools["x"].Etag())
	if err != nil {
		t.Fatal(err)
	}
	if !class.Facts("x", digest("x"), set).Sure {
		t.Error("Sure is false although an operator set the class")
	}
}
