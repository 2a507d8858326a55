// Package redact removes secrets from the output of servers and model providers.
package redact

import (
	"bytes"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"

	"github.com/sluice-mesh/sluice/services/internal/gosched"
)

const (
	// redacted replaces a secret. It needs no escaping in JSON.
	redacted = "[redacted]"
	// minLoggedLen is the minimum length in bytes of secrets that are removed from logs. minAnsweredLen is the minimum
	// length of secrets that are removed from answers. Shorter secrets may occur in ordinary text, and answers must not
	// be changed by mistake.
	minLoggedLen, minAnsweredLen = 6, 8
)

// Redactor removes the secrets that a server's configuration contains. The zero value removes nothing from answers. A
// Redactor is safe for concurrent use.
type Redactor struct {
	log *strings.Replacer
	// logged contains the strings that are removed from logs, the longest first.
	logged []string
	// secrets contains the secrets to remove from answers, the longest first. begins[b] is true if a secret can begin
	// with the byte b in JSON.
	secrets []string
	begins  [256]bool
}

// New returns a Redactor that removes secrets from answers and logs. From logs, it also removes the values of the
// environment variables in env, because they may be secrets.
func New(env map[string]string, secrets []string) *Redactor {
	var pairs []string
	logged := linesOfMinLength(slices.AppendSeq(slices.Clone(secrets), maps.Values(env)), minLoggedLen)
	for _, text := range logged {
		pairs = append(pairs, text, redacted)
	}
	s := &Redactor{log: strings.NewReplacer(pairs...), logged: logged, secrets: linesOfMinLength(secrets, minAnsweredLen)}
	s.begins['\\'] = true
	for _, secret := range s.secrets {
		s.begins[secret[0]] = true
	}
	return s
}

// linesOfMinLength returns the lines of the values that have at least the given length in bytes. Longer lines come
// first, because one secret may contain another.
func linesOfMinLength(values []string, length int) []string {
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

// Log removes secrets from text that will be logged. It panics for the zero Redactor.
func (s *Redactor) Log(text string) string { return s.log.Replace(text) }

// Answer removes secrets, in any JSON spelling, from the strings in JSON text. A server may have been tricked into
// returning its own secrets. The rest of the text is unchanged, so valid JSON stays valid, and invalid JSON stays
// invalid.
func (s *Redactor) Answer(raw []byte) []byte {
	if !s.suspects(raw) {
		return raw
	}
	var out []byte
	done, inside := 0, false
	var work gosched.Work
	for at := 0; at < len(raw); {
		size := 1
		switch c := raw[at]; {
		case c == '"':
			inside = !inside
		case !inside, !s.begins[c]:
		default:
			work.Step()
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

// suspects reports whether JSON text may contain a secret, either literally or with escapes.
func (s *Redactor) suspects(raw []byte) bool {
	if len(s.secrets) == 0 {
		return false
	}
	return bytes.IndexByte(raw, '\\') >= 0 ||
		slices.ContainsFunc(s.secrets, func(secret string) bool { return bytes.Contains(raw, []byte(secret)) })
}

// secretAt returns the number of bytes at the beginning of text that spell a secret, or 0 if there is no secret. text
// is inside a JSON string.
func (s *Redactor) secretAt(text []byte) int {
	for _, secret := range s.secrets {
		if n := secretLen(text, secret); n > 0 {
			return n
		}
	}
	return 0
}

func secretLen(text []byte, secret string) int {
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

// nextChar returns the first character of text, which is inside a JSON string, and the number of bytes with which the
// character is written, which is one byte or an escape. At the end of the string, and for an invalid escape, it returns
// "" and 0.
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

// codeUnit parses an escape of the form \u00e9.
func codeUnit(text []byte) (rune, bool) {
	if len(text) < 6 || text[0] != '\\' || text[1] != 'u' {
		return 0, false
	}
	unit, err := strconv.ParseUint(string(text[2:6]), 16, 16)
	return rune(unit), err == nil
}
