package advice

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	mcpv1 "github.com/sluice-mesh/sluice/gen/sluice/mcp/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/safetext"
)

// These constants limit the number and length of quotes in an explanation, because the quoted text comes from servers.
const (
	maxQuotes = 3
	// maxQuoteBytes limits the length of a quote in bytes.
	maxQuoteBytes = 80
)

func evidenceText(c *policyv1.Classification) string {
	if pieces := quotes(c, c.GetCategory()); pieces != "" {
		return "From the tool's definition: " + pieces + "."
	}
	return ""
}

func stricterEvidenceText(c *policyv1.Classification) string {
	var sentences []string
	for _, d := range denials {
		if d.category > c.GetCategory() && hasEvidence(c, d.category) {
			sentences = append(sentences, fmt.Sprintf("Weaker evidence speaks for %s: %s.", displayName(d.category), quotes(c, d.category)))
		}
	}
	return strings.Join(sentences, " ")
}

func hasEvidence(c *policyv1.Classification, category mcpv1.Category) bool {
	return slices.ContainsFunc(c.GetEvidence(), func(e *policyv1.Evidence) bool { return e.GetCategory() == category })
}

// quotes returns the meanings and the quoted words of the evidence for a category. It uses at most maxQuotes pieces of
// evidence. The quotes are sorted by descending weight, like the evidence in the classification.
func quotes(c *policyv1.Classification, category mcpv1.Category) string {
	var out []string
	for _, e := range c.GetEvidence() {
		if e.GetCategory() == category && len(out) < maxQuotes {
			out = append(out, fmt.Sprintf("%s (%s)", safetext.Line(e.GetMeaning()), quote(e.GetQuote())))
		}
	}
	return strings.Join(out, "; ")
}

// quote puts a text from a server in quotation marks. It truncates a long text and escapes invisible characters.
func quote(text string) string {
	if len(text) > maxQuoteBytes {
		end := maxQuoteBytes
		for end > 0 && !utf8.RuneStart(text[end]) {
			end--
		}
		text = text[:end] + "…"
	}
	return strconv.Quote(text)
}
