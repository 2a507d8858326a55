package strictyaml

import (
	"strings"
)

// Suggest returns `did you mean "x"?` with the known word that is closest to word, or the list of the known words if
// none is close.
func Suggest(word string, known []string) string {
	if best, ok := Closest(word, known); ok {
		return `did you mean "` + best + `"?`
	}
	if len(known) == 0 {
		return ""
	}
	return "known are: " + strings.Join(known, ", ")
}

// Closest returns the known word that is closest to word by edit distance, the first among equals, and whether it is
// close enough: a third of its letters may differ. Case, and `-` for `_`, don't count.
func Closest(word string, known []string) (string, bool) {
	if word == "" || len(word) > maxShown {
		return "", false
	}
	best, distance := "", len(word)+1
	for _, candidate := range known {
		d := editDistance(fold(word), fold(candidate))
		if d < distance && d <= max(1, len(candidate)/3) && d < len(candidate) {
			best, distance = candidate, d
		}
	}
	return best, best != ""
}

func fold(word string) string {
	return strings.ReplaceAll(strings.ToLower(word), "-", "_")
}

// editDistance counts the letters to insert, delete, replace or swap with their neighbour between a and b (optimal
// string alignment).
func editDistance(a, b string) int {
	var before []int // the row before the previous one
	last := make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := range len(a) {
		row := make([]int, len(b)+1)
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			row[j+1] = min(last[j]+cost, last[j+1]+1, row[j]+1)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
		before, last = last, row
	}
	return last[len(b)]
}
