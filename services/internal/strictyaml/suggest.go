package strictyaml

import (
	"strings"
)

// Suggest returns `did you mean "x"?`, where x is the known word that is closest to word. If no known word is close
// enough, it returns the list of known words.
func Suggest(word string, known []string) string {
	if best, ok := Closest(word, known); ok {
		return `did you mean "` + best + `"?`
	}
	if len(known) == 0 {
		return ""
	}
	return "known are: " + strings.Join(known, ", ")
}

// Closest returns the known word with the smallest edit distance to word, and reports whether it is close enough. If
// several known words are equally close, it returns the first one. At most a third of the letters may differ.
// Differences between upper and lower case, and between - and _, are ignored.
func Closest(word string, known []string) (string, bool) {
	if word == "" || len(word) > maxShown {
		return "", false
	}
	best, distance := "", len(word)+1
	for _, candidate := range known {
		d := editDistance(foldCase(word), foldCase(candidate))
		if d < distance && d <= max(1, len(candidate)/3) && d < len(candidate) {
			best, distance = candidate, d
		}
	}
	return best, best != ""
}

func foldCase(word string) string {
	return strings.ReplaceAll(strings.ToLower(word), "-", "_")
}

// editDistance returns how many letters must be inserted, deleted, replaced or swapped with their neighbors to turn a
// into b (optimal string alignment).
func editDistance(a, b string) int {
	var before []int // the row before the last one
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
