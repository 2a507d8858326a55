package engine

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// shortTexts returns all strings that consist of the letters a and b and have at most n letters.
func shortTexts(n int) []string {
	out := []string{""}
	for from := 0; n > 0; n-- {
		last := len(out)
		for _, text := range out[from:last] {
			out = append(out, text+"a", text+"b")
		}
		from = last
	}
	return out
}

// TestPatterns_RelationsAgreeWithTheTextsThatTheyMatch checks the results of the methods contains and intersects against
// the strings that both lists of patterns match.
func TestPatterns_RelationsAgreeWithTheTextsThatTheyMatch(t *testing.T) {
	t.Parallel()
	texts := shortTexts(8) // patterns of four characters that intersect have a common text of at most eight letters
	rapid.Check(t, func(t *rapid.T) {
		draw := func(name string) patterns {
			return compilePatterns(rapid.SliceOfN(rapid.StringMatching(`[ab*?]{1,4}`), 1, 2).Draw(t, name))
		}
		one, other := draw("one"), draw("other")
		contained, common := true, false
		for _, text := range texts {
			in := other.match(text)
			contained = contained && (!in || one.match(text))
			common = common || in && one.match(text)
		}
		if one.contains(other) && !contained {
			t.Fatalf("%v contains %v", one, other)
		}
		if one.intersects(other) != common {
			t.Fatalf("%v intersects %v: %t, want %t", one, other, !common, common)
		}
	})
}

func TestPatterns_ContainsKnowsTheUsualCases(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		one, other string
		want       bool
	}{
		{"", "a", true}, {"", "", true}, {"*", "", true}, {"*", "a* b", true}, {"a*", "a ab a?", true}, {"a b", "b", true}, {"a?", "a?", true},
		{"a", "", false}, {"a*", "b", false}, {"a", "a*", false}, {"a b", "c", false},
	} {
		one, other := compilePatterns(strings.Fields(c.one)), compilePatterns(strings.Fields(c.other))
		if got := one.contains(other); got != c.want {
			t.Errorf("%q contains %q: %t", c.one, c.other, got)
		}
	}
}
