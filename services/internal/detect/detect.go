package detect

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// These constants limit a search. A text that exceeds them is not searched, so callers must treat the whole text as
// sensitive.
const (
	// MaxText is the maximum length of one text, in bytes.
	MaxText = 16 << 20
	// MaxWork limits how many bytes the regular expressions of one [Search] read. Each expression reads only the parts of
	// a text around its keywords. The limit for a message of n bytes is 256 KiB + 24 n, but at most MaxWork, so that a
	// small message can't take as long as a large one. Source code with many keywords needs about 5 n bytes.
	MaxWork = 16 << 20

	minWork, workPerByte = 256 << 10, 24
)

// ErrTooLarge means that a text is longer than [MaxText], or that a search needs more than [MaxWork].
var ErrTooLarge = errors.New("the text is too large to be searched")

// A Hit is a part of a text that a detector found.
type Hit struct {
	// Start and End are the byte offsets of the part, which is text[Start:End]. End is greater than Start.
	Start, End int
	// Detector is the detector's name, one of [Names].
	Detector string
}

// A finder is a named detector.
type finder struct {
	name string
	find func(s *Search, text string) ([]span, error)
}

// finders contains the detectors. If hits overlap, the merged hit has the name of the detector that is first in this
// list.
var finders = []finder{
	{"secrets", (*Search).secrets},
	{"card", alone(findCards)},
	{"iban", alone(findIBANs)},
	{"email", alone(findEmails)},
	{"phone", alone(findPhones)},
	{"us_ssn", alone(findSSNs)},
}

// alone adapts a detector that does not use the [Search]. The detector needs no limit, because its time grows only
// linearly with the length of the text.
func alone(find func(text string) []span) func(*Search, string) ([]span, error) {
	return func(_ *Search, text string) ([]span, error) { return find(text), nil }
}

// A span is the half-open range [start, end) of bytes.
type span struct{ start, end int }

// Names returns the names of all detectors.
func Names() []string {
	names := make([]string, len(finders))
	for i := range finders {
		names[i] = finders[i].name
	}
	return names
}

// A Set is a set of detectors. The zero Set finds nothing.
type Set struct{ has uint16 }

// NewSet returns the set of the detectors with the given names. The error names the first unknown name.
func NewSet(names ...string) (Set, error) {
	var s Set
	for _, name := range names {
		i := slices.Index(Names(), name)
		if i < 0 {
			return Set{}, fmt.Errorf("there is no detector %q: use %s", name, strings.Join(Names(), ", "))
		}
		s.has |= 1 << i
	}
	return s, nil
}

// IsEmpty reports whether the set has no detectors.
func (s Set) IsEmpty() bool { return s.has == 0 }

// NewSearch returns a search of the texts in one message. size is the size of the message in bytes.
func (s Set) NewSearch(size int) *Search {
	return &Search{set: s, work: min(MaxWork, minWork+workPerByte*size)}
}

// A Search searches the texts of one message. It must not be used concurrently.
type Search struct {
	set Set
	// work is the number of bytes that the regular expressions may still read.
	work int
	// windows is memory for the windows of a [secretScan]. It is reused for the next text. Between two texts, all windows
	// are empty.
	windows []span
}

// Find returns what the detectors of the set find in a text, sorted and without overlaps. Hits that overlap are merged
// into one hit with the name of the detector that comes first in [Names]. The error is [ErrTooLarge] or nil. If there
// is an error, any part of the text may contain further hits.
func (s *Search) Find(text string) ([]Hit, error) {
	if s.set.IsEmpty() || text == "" {
		return nil, nil
	}
	if len(text) > MaxText {
		return nil, ErrTooLarge
	}
	hits, err := s.findIn(nil, text, nil)
	if err != nil {
		return nil, err
	}
	if folded, offsets := fold(text); offsets != nil {
		if hits, err = s.findIn(hits, folded, offsets); err != nil {
			return nil, err
		}
	}
	return merge(hits), nil
}

// findIn appends the hits in text to hits. If offsets is not nil, it maps the offsets in text to the offsets in the
// original text.
func (s *Search) findIn(hits []Hit, text string, offsets []int) ([]Hit, error) {
	for i := range finders {
		if s.set.has&(1<<i) == 0 {
			continue
		}
		found, err := finders[i].find(s, text)
		if err != nil {
			return nil, err
		}
		for _, f := range found {
			if offsets != nil {
				f = span{offsets[f.start], offsets[f.end]}
			}
			hits = append(hits, Hit{Start: f.start, End: f.end, Detector: finders[i].name})
		}
	}
	return hits, nil
}

// merge sorts hits and merges those that overlap.
func merge(hits []Hit) []Hit {
	if len(hits) < 2 {
		return hits
	}
	order := func(name string) int {
		return slices.IndexFunc(finders, func(f finder) bool { return f.name == name })
	}
	slices.SortFunc(hits, func(a, b Hit) int { return cmp.Or(cmp.Compare(a.Start, b.Start), cmp.Compare(b.End, a.End)) })
	out := hits[:1]
	for _, h := range hits[1:] {
		last := &out[len(out)-1]
		if h.Start >= last.End {
			out = append(out, h)
			continue
		}
		last.End = max(last.End, h.End)
		if order(h.Detector) < order(last.Detector) {
			last.Detector = h.Detector
		}
	}
	return out
}

// FindMember is like [Search.Find], but for the value of a member of a JSON object. Many rules for secrets need the
// name of the value. If the member's name contains a keyword of the detector `secrets`, the value is therefore also
// searched in the form of an assignment, name="value". The offsets of all hits are offsets in the value.
func (s *Search) FindMember(name, value string) ([]Hit, error) {
	hits, err := s.Find(value)
	if err != nil || s.set.has&1 == 0 || value == "" || len(name) > maxLine || !gitleaks().keywords.isIn(name) {
		return hits, err
	}
	if hits, err = s.assigned(hits, name, value, nil); err != nil {
		return nil, err
	}
	if folded, offsets := fold(value); offsets != nil {
		if hits, err = s.assigned(hits, name, folded, offsets); err != nil {
			return nil, err
		}
	}
	return merge(hits), nil
}

// assigned appends the secrets that are found in an assignment of a value to a name. offsets has the same meaning as
// for [Search.findIn].
func (s *Search) assigned(hits []Hit, name, value string, offsets []int) ([]Hit, error) {
	prefix := name + `="`
	spans, err := s.secrets(prefix + value + `"`)
	if err != nil {
		return nil, err
	}
	for _, f := range spans {
		f = span{max(0, f.start-len(prefix)), min(len(value), f.end-len(prefix))}
		if f.start >= f.end {
			continue
		}
		if offsets != nil {
			f = span{offsets[f.start], offsets[f.end]}
		}
		hits = append(hits, Hit{Start: f.start, End: f.end, Detector: finders[0].name})
	}
	return hits, nil
}
