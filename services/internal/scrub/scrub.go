// Package scrub removes secrets from the output of servers and model providers.
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
	// redacted replaces a secret. It needs no escape in JSON.
	redacted = "[redacted]"
	// minLogged and minAnswered are the minimum lengths of secrets that are removed from logs and from answers, in
	// bytes. Shorter ones occur in ordinary text, and answers must not be changed by mistake.
	minLogged, minAnswered = 6, 8
)

// Scrubber removes the secrets that a server was configured with. The zero value removes nothing from answers. It is
// safe for concurrent use.
type Scrubber struct {
	log *strings.Replacer
	// logged are what log replaces, longer texts first.
	logged []string
	// secrets are the secrets to remove from answers, the longer ones first, and begins the bytes with which a
	// spelling of one can begin.
	secrets []string
	begins  [256]bool
}

// New returns a scrubber that removes secrets from answers, and secrets and the values of variables, which may be
// secrets, from logs.
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

// longLines returns the lines of values that have a minimum length, the longer ones first, because one secret may
// contain another.
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

// Log removes secrets from a text for the log. It panics for the zero value.
func (s *Scrubber) Log(text string) string { return s.log.Replace(text) }

// Answer removes secrets from the strings of a JSON text, in any spelling: a misled server may return what it was
// given. Everything else is unchanged, so valid JSON stays valid and invalid JSON invalid.
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

// suspects reports whether a text may contain a secret, verbatim or with escapes.
func (s *Scrubber) suspects(raw []byte) bool {
	if len(s.secrets) == 0 {
		return false
	}
	return bytes.IndexByte(raw, '\\') >= 0 ||
		slices.ContainsFunc(s.secrets, func(secret string) bool { return bytes.Contains(raw, []byte(secret)) })
}

// secretAt returns how many bytes at the beginning of text, which is inside a JSON string, spell a secret; 0 if they
// spell none.
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

// nextChar returns the character at the beginning of text, which is inside a JSON string, and how many bytes spell
// it: a byte or an escape. At the string's end and for an invalid escape it returns none.
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

// codeUnit parses an escape such as \u00e9.
func codeUnit(text []byte) (rune, bool) {
	if len(text) < 6 || text[0] != '\\' || text[1] != 'u' {
		return 0, false
	}
	unit, err := strconv.ParseUint(string(text[2:6]), 16, 16)
	return rune(unit), err == nil
}
