package detect

import (
	"math"
	"slices"
)

// secrets finds secrets with the rules of gitleaks. First, one pass over the text finds the keywords. The regular
// expression of each rule then reads only the parts of the text in which a match can contain the keyword.
func (s *Search) secrets(text string) ([]span, error) {
	rules := gitleaks()
	scan := secretScan{search: s, rules: rules, text: text, windows: s.windows}
	state := int32(0)
	for i := range len(text) {
		state = rules.keywords.step(state, text[i])
		for _, word := range rules.keywords.words[state] {
			for _, rule := range rules.rulesOf[word] {
				if err := scan.add(int(rule), span{i + 1 - len(rules.words[word]), i + 1}); err != nil {
					return nil, err
				}
			}
		}
	}
	for _, rule := range scan.used {
		if err := scan.flush(rule); err != nil {
			return nil, err
		}
	}
	return scan.found, nil
}

// genericBefore and genericAfter are the sizes, in bytes, of the part of the text before and after a keyword that the
// rule generic-api-key searches first. The rule needs such a window, because its keywords are common words and its
// matches have no maximum length. A match has at most 50 bytes before the keyword, and at most about 60 bytes between
// the keyword and the secret. If the secret does not end in the window, the rest of the text is read.
const (
	genericRule   = "generic-api-key"
	genericBefore = 64
	genericAfter  = 512
)

// secretScan is the state of the search for secrets in one text.
type secretScan struct {
	search *Search
	rules  *ruleSet
	text   string
	// windows[rule] is the part of the text that the rule's regular expression must still read. The window is empty if
	// its end is 0.
	windows []span
	// used contains the indexes of the rules that have a window, in the order of their first keyword in the text.
	used  []int
	found []span
}

// add adds the part of the text around a keyword to the window of a rule. If this part neither overlaps the window nor is
// adjacent to it, add first searches the window with the rule.
func (s *secretScan) add(rule int, keyword span) error {
	if s.windows == nil {
		s.windows = make([]span, len(s.rules.rules))
		s.search.windows = s.windows // all windows are empty again when the text has been searched
	}
	r := &s.rules.rules[rule]
	part := span{max(0, keyword.start-r.reach), min(len(s.text), keyword.end+r.reach)}
	if r.reach < 0 {
		part = span{0, len(s.text)}
		if r.id == genericRule {
			part = span{max(0, keyword.start-genericBefore), min(len(s.text), keyword.end+genericAfter)}
		}
	}
	open := &s.windows[rule]
	switch {
	case open.end == 0:
		if !slices.Contains(s.used, rule) {
			s.used = append(s.used, rule)
		}
	case part.start <= open.end:
		open.end = max(open.end, part.end)
		return nil
	default:
		if err := s.flush(rule); err != nil {
			return err
		}
	}
	*open = part
	return nil
}

// flush searches the window of a rule with the rule's regular expression, and empties the window.
func (s *secretScan) flush(rule int) error {
	r, window := &s.rules.rules[rule], s.windows[rule]
	if window.end == 0 {
		return nil
	}
	s.windows[rule] = span{}
	for {
		cut, err := s.read(r, window)
		if err != nil || !cut {
			return err
		}
		window.end = len(s.text) // the match may be longer than the window
	}
}

// read appends the secrets that a rule finds in a window. cut is true if a match without a maximum length touches the
// end of the window. In this case, nothing is appended.
func (s *secretScan) read(r *secretRule, window span) (cut bool, err error) {
	if s.search.work -= window.end - window.start; s.search.work < 0 {
		return false, ErrTooLarge
	}
	known := len(s.found)
	part := s.text[window.start:window.end]
	for _, match := range r.regex().FindAllStringSubmatchIndex(part, -1) {
		atStart, atEnd := match[0] == 0 && window.start > 0, match[1] == len(part) && window.end < len(s.text)
		if atEnd && r.reach < 0 {
			s.found = s.found[:known]
			return true, nil
		}
		if (atStart || atEnd) && r.reach >= 0 { // the regex could take the edge of the window for the edge of a word
			continue
		}
		m, secret := span{match[0] + window.start, match[1] + window.start}, r.secret(match)
		secret.start, secret.end = secret.start+window.start, secret.end+window.start
		if s.counts(r, m, secret) {
			s.found = append(s.found, secret)
		}
	}
	return false, nil
}

// secret returns the part of a match that is the secret.
func (r *secretRule) secret(match []int) span {
	if i := 2 * r.group; r.group > 0 && i+1 < len(match) && match[i] >= 0 {
		return span{match[i], match[i+1]}
	}
	for i := 2; r.group == 0 && i+1 < len(match); i += 2 {
		if match[i] >= 0 && match[i+1] > match[i] {
			return span{match[i], match[i+1]}
		}
	}
	return span{match[0], match[1]}
}

// counts reports whether a secret has the entropy that its rule requires and no allowlist excludes it.
func (s *secretScan) counts(r *secretRule, m, secret span) bool {
	if secret.start == secret.end || r.entropy > 0 && entropy(s.text[secret.start:secret.end]) <= r.entropy {
		return false
	}
	if s.rules.global().excludes(s.text, m, secret) {
		return false
	}
	return !slices.ContainsFunc(r.allows, func(list func() *allowlist) bool { return list().excludes(s.text, m, secret) })
}

// entropy returns the Shannon entropy of a text in bits per byte.
func entropy(text string) (bits float64) {
	var counts [256]int
	for i := range len(text) {
		counts[text[i]]++
	}
	for _, n := range counts {
		if n > 0 {
			p := float64(n) / float64(len(text))
			bits -= p * math.Log2(p)
		}
	}
	return bits
}
