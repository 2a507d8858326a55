package gallery

import (
	"cmp"
	"slices"
	"strings"
	"unicode"

	wasmagentv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
)

// maxWords limits how many words of a query are used. Further words are ignored.
const maxWords = 16

// The weight of a matching word depends on the part of the template that contains the word.
const (
	weightName        = 1.0
	weightTags        = 0.8
	weightDescription = 0.4
	weightInsideWord  = 0.2 // inside another word
)

// Search returns the templates that a tenant can see and that match at least one word of the query, most relevant
// first. Equally relevant templates are in the order of [Gallery.List].
func (g *Gallery) Search(tenantID, query string) []*wasmagentv1.TemplateHit {
	terms := words(query)
	if len(terms) > maxWords {
		terms = terms[:maxWords]
	}
	var hits []*wasmagentv1.TemplateHit
	for _, t := range g.List(tenantID) {
		if score := relevance(t, terms); score > 0 {
			hits = append(hits, &wasmagentv1.TemplateHit{
				Id: t.GetId(), Name: t.GetName(), Description: t.GetDescription(), Category: t.GetCategory(), Tags: t.GetTags(), Relevance: score,
			})
		}
	}
	slices.SortStableFunc(hits, func(a, b *wasmagentv1.TemplateHit) int { return cmp.Compare(b.GetRelevance(), a.GetRelevance()) })
	return hits
}

func words(text string) []string {
	return strings.FieldsFunc(strings.ToLower(text), func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) })
}

// relevance returns the mean weight of the search terms in a template. The weight is between 0 and 1.
func relevance(t *wasmagentv1.Template, terms []string) float64 {
	if len(terms) == 0 {
		return 0
	}
	name, tags := words(t.GetId()+" "+t.GetName()), words(t.GetCategory()+" "+strings.Join(t.GetTags(), " "))
	description := words(t.GetDescription())
	sum := 0.0
	for _, word := range terms {
		part := func(known string) bool { return strings.Contains(known, word) }
		switch {
		case slices.Contains(name, word):
			sum += weightName
		case slices.Contains(tags, word):
			sum += weightTags
		case slices.Contains(description, word):
			sum += weightDescription
		case slices.ContainsFunc(name, part), slices.ContainsFunc(tags, part), slices.ContainsFunc(description, part):
			sum += weightInsideWord
		}
	}
	return sum / float64(len(terms))
}
