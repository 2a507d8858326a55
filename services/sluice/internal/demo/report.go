package demo

import (
	"cmp"
	"context"
	"fmt"
	"hash"
	"hash/fnv"
	"io"
	"slices"
	"strings"
	"unicode"
)

// report summarizes the notes. Equal notes result in equal reports.
type report struct {
	Notes    int         `json:"notes"`
	Words    int         `json:"words"`
	TopWords []wordCount `json:"topWords"`
	// Fingerprint is the FNV-1a hash of the ids, titles and bodies of all notes in order, each followed by a zero byte.
	Fingerprint uint64 `json:"fingerprint"`
	// SavedAs is the id of the note that contains the report. It is empty unless the caller requested a note.
	SavedAs string `json:"savedAs,omitzero"`
}

func (r report) summary() string {
	return fmt.Sprintf("%d notes, %d words, fingerprint %d", r.Notes, r.Words, r.Fingerprint)
}

type wordCount struct {
	Word  string `json:"word"`
	Count int    `json:"count"`
}

// progressFunc reports the number of notes that have been read, and the number of all notes. If it returns an error,
// the report stops.
type progressFunc func(ctx context.Context, done, all int) error

const (
	stepsOfReport = 10 // the maximum number of progress notifications for one report
	reportSchema  = `{
  "type": "object",
  "properties": {
    "notes": {"type": "integer", "description": "How many notes were read."},
    "words": {"type": "integer", "description": "How many words they hold."},
    "topWords": {
      "type": "array", "description": "The most frequent words, in lower case; equals in alphabetical order.",
      "items": {
        "type": "object",
        "properties": {"word": {"type": "string"}, "count": {"type": "integer"}},
        "required": ["word", "count"], "additionalProperties": false
      }
    },
    "fingerprint": {
      "type": "integer", "minimum": 0,
      "description": "Equal when the notes are equal. 64 bits: a reader that keeps numbers as doubles loses its last digits."
    },
    "savedAs": {"type": "string", "description": "The id of the note that keeps the report; absent when it was not saved."}
  },
  "required": ["notes", "words", "topWords", "fingerprint"],
  "additionalProperties": false
}`
)

// writeReport returns a report on the notes. The report's list of frequent words has at most top words.
func writeReport(ctx context.Context, notes []note, top int, tell progressFunc) (report, error) {
	counts := map[string]int{}
	sum := fnv.New64a()
	r := report{Notes: len(notes)}
	step := max(1, (len(notes)+stepsOfReport-1)/stepsOfReport)
	done := 0
	for part := range slices.Chunk(notes, step) {
		for _, n := range part {
			r.Words += countWords(counts, n)
			hashNote(sum, n)
		}
		done += len(part)
		if err := tell(ctx, done, len(notes)); err != nil {
			return report{}, fmt.Errorf("send progress: %w", err)
		}
	}
	r.Fingerprint = sum.Sum64()
	r.TopWords = mostFrequent(counts, top)
	return r, nil
}

func countWords(counts map[string]int, n note) (words int) {
	notInWord := func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) }
	for word := range strings.FieldsFuncSeq(n.Title+" "+n.Body, notInWord) {
		counts[strings.ToLower(word)]++
		words++
	}
	return words
}

func hashNote(sum hash.Hash, n note) {
	for _, text := range []string{n.ID, n.Title, n.Body} {
		_, _ = io.WriteString(sum, text+"\x00") // a hash never returns an error
	}
}

func mostFrequent(counts map[string]int, top int) []wordCount {
	all := make([]wordCount, 0, len(counts))
	for word, count := range counts {
		all = append(all, wordCount{word, count})
	}
	slices.SortFunc(all, func(a, b wordCount) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), strings.Compare(a.Word, b.Word))
	})
	return all[:min(top, len(all))]
}
