// Package scrub removes secrets from what a server, or a provider of models, writes.
package scrub

import (
	"bytes"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"

	"github.com/sluice-mesh/sluice/services/internal/turn"
)

const (
	// redacted stands where a secret stood. It needs no escape in JSON.
	redacted = "[redacted]"
	// minLogged and minAnswered are how long a text must be to be blotted out of the
	// log and of answers, in bytes. Shorter ones are words of any text, and in answers
	// every other byte counts.
	minLogged, minAnswered = 6, 8
)

// Scrubber blots out what a server was configured with. The zero value blots nothing out
// of answers. It is safe for concurrent use.
type Scrubber struct {
	log *strings.Replacer
	// logged are what log replaces, the longer ones first.
	logged []string
	// secrets are what answers must not hold, the longer ones first, and begins the
	// bytes with which the spelling of one can begin.
	secrets []string
	begins  [256]bool
}

// New returns a scrubber that blots secrets out of answers, and out of the
// log also the values of variables, which may be some.
func New(env map[string]string, secrets []string) *Scrubber {
	var pairs []string
	logged := longLines(slices.AppendSeq(slices.Clone(secrets), maps.Values(env)), minLogged)
	for _, text := range logged {
		pairs = append(pairs, text, redacted)
	}
	s := &Scrubber{log: strings.NewReplacer(pairs...), logged: logged, secrets: longLines(secrets, minAnswered)}
	s.begins['\\'] = true
	for _, secret := range s.secrets {
		s.begins[secret[0]] = true
	}
	return s
}

// longLines returns the lines of values that have a length, the longer ones first: a
// secret may hold another.
func longLines(values []string, length int) []string {
	var out []string
	for _, value := range values {
		for line := range strings.Lines(value) {
			if line = strings.TrimSpace(line); len(line) >= length {
				out = append(out, line)
			}
		}
	}
	slices.SortFunc(out, func(a, b string) int { return len(b) - len(a) })
	return out
}

// Log blots secrets out of a text for the log. Of the zero value it panics.
func (s *Scrubber) Log(text string) string { return s.log.Replace(text) }

// Answer blots secrets out of the strings of a JSON text, in whatever spelling they
// stand there; a server that was misled may well send back what it was given. All
// else stays what it is, so JSON stays JSON, and what is none is no more so.
func (s *Scrubber) Answer(raw []byte) []byte {
	if !s.suspects(raw) {
		return raw
	}
	var out []byte
	done, inside := 0, false
	var stint turn.Stint
	for at := 0; at < len(raw); {
		size := 1
		switch c := raw[at]; {
		case c == '"':
			inside = !inside
		case !inside, !s.begins[c]:
		default:
			stint.Step()
			if size = s.secretAt(raw[at:]); size > 0 {
				out = append(append(out, raw[done:at]...), redacted...)
				done = at + size
			} else {
				_, size = nextChar(raw[at:])
			}
		}
		at += max(1, size)
	}
	if done == 0 {
		return raw
	}
	return append(out, raw[done:]...)
}

// suspects reports whether a text may hold a secret: as it is, or with escapes.
func (s *Scrubber) suspects(raw []byte) bool {
	if len(s.secrets) == 0 {
		return false
	}
	return bytes.IndexByte(raw, '\\') >= 0 ||
		slices.ContainsFunc(s.secrets, func(secret string) bool { return bytes.Contains(raw, []byte(secret)) })
}

// secretAt returns how many bytes at the beginning of text, which is inside of a
// JSON string, spell a secret; 0 where they spell none.
func (s *Scrubber) secretAt(text []byte) int {
	for _, secret := range s.secrets {
		if n := spells(text, secret); n > 0 {
			return n
		}
	}
	return 0
}

func spells(text []byte, secret string) int {
	at := 0
	for secret != "" {
		char, size := nextChar(text[at:])
		rest, same := strings.CutPrefix(secret, char)
		if size == 0 || !same {
			return 0
		}
		secret, at = rest, at+size
	}
	return at
}

// nextChar returns what stands at the beginning of text, which is inside of a JSON
// string, and how many bytes spell it: a byte or an escape. At the string's end, and
// where an escape is none, these are none.
func nextChar(text []byte) (string, int) {
	const short, meant = `"\/bfnrt`, "\"\\/\b\f\n\r\t"
	switch {
	case len(text) == 0 || text[0] == '"':
		return "", 0
	case text[0] != '\\':
		return string(text[:1]), 1
	case len(text) == 1:
		return "", 0
	}
	if i := strings.IndexByte(short, text[1]); i >= 0 {
		return meant[i : i+1], 2
	}
	high, ok := codeUnit(text)
	if !ok {
		return "", 0
	}
	low, ok := codeUnit(text[6:])
	if pair := utf16.DecodeRune(high, low); ok && pair != unicode.ReplacementChar {
		return string(pair), 12
	}
	return string(high), 6
}

// codeUnit reads an escape such as \u00e9.
func codeUnit(text []byte) (rune, bool) {
	if len(text) < 6 || text[0] != '\\' || text[1] != 'u' {
		return 0, false
	}
	unit, err := strconv.ParseUint(string(text[2:6]), 16, 16)
	return rune(unit), err == nil
}
