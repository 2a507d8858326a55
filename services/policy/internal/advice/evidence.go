package advice

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	mcpv1 "github.com/sluice-mesh/sluice/gen/sluice/mcp/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/viewtext"
)

// Bounds of what is quoted, which servers write.
const (
	// mostEvidence is how many pieces of evidence are quoted for a category.
	mostEvidence = 3
	// longestQuote is how many bytes of each are shown.
	longestQuote = 80
)

// spoken quotes what speaks for the category.
func spoken(c *policyv1.Classification) string {
	if pieces := quotes(c, c.GetCategory()); pieces != "" {
		return "From the tool's definition: " + pieces + "."
	}
	return ""
}

// stricter quotes what speaks for a stricter category than the tool is held to be of.
func stricter(c *policyv1.Classification) string {
	var said []string
	for _, d := range denials {
		if d.category > c.GetCategory() && speaksFor(c, d.category) {
			said = append(said, fmt.Sprintf("Weaker evidence speaks for %s: %s.", named(d.category), quotes(c, d.category)))
		}
	}
	return strings.Join(said, " ")
}

// speaksFor reports whether there is evidence for a category.
func speaksFor(c *policyv1.Classification, category mcpv1.Category) bool {
	return slices.ContainsFunc(c.GetEvidence(), func(e *policyv1.Evidence) bool { return e.GetCategory() == category })
}

// quotes are the first pieces of evidence for a category, which weigh most: what they mean,
// and the words themselves.
func quotes(c *policyv1.Classification, category mcpv1.Category) string {
	var out []string
	for _, e := range c.GetEvidence() {
		if e.GetCategory() == category && len(out) < mostEvidence {
			out = append(out, fmt.Sprintf("%s (%s)", viewtext.Line(e.GetMeaning()), quote(e.GetQuote())))
		}
	}
	return strings.Join(out, "; ")
}

// quote is a text of a server, cut and in quotes, with all that does not show as escapes.
func quote(text string) string {
	if len(text) > longestQuote {
		end := longestQuote
		for end > 0 && !utf8.RuneStart(text[end]) {
			end--
		}
		text = text[:end] + "…"
	}
	return strconv.Quote(text)
}
