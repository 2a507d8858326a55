package cli

import (
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/sluice-mesh/sluice/services/sluice/internal/clientconfig"
	"github.com/sluice-mesh/sluice/services/sluice/internal/clientsetup"
)

const (
	hidden = "[hidden]"
	// shortestHidden is the minimum length in bytes of a hidden secret. Shorter secrets are not hidden, because they can
	// also be part of other words.
	shortestHidden = 4
	// shortestPart is the minimum length in bytes of a part of a secret that is hidden if it occurs alone.
	shortestPart = 8
)

// A hider hides secrets in the content of files.
type hider struct {
	values []string // the secrets, longest first
	// parts replaces the parts of secrets that contain only characters that are never escaped. These parts are hidden even
	// if the rest of the secret is escaped in an unknown way.
	parts *strings.Replacer
}

// hideSecrets returns a hider for the secrets in all entries, including entries that `init` does not change.
func (s *setup) hideSecrets() hider {
	var entries []clientconfig.Entry
	for _, f := range s.plan.Files {
		entries = append(entries, f.Entries...)
	}
	return hideSecretsOf(entries)
}

// hideSecretsOf returns a hider for the secrets in the given entries.
func hideSecretsOf(entries []clientconfig.Entry) hider {
	var values []string
	for _, e := range entries {
		for _, p := range slices.Concat(e.Env, e.Headers) {
			if clientsetup.IsSecret(p, slices.Contains(e.Headers, p)) {
				values = append(values, p.Value)
			}
		}
		values = append(values, clientsetup.SecretArgument(e))
	}
	return newHider(values)
}

func newHider(values []string) hider {
	var h hider
	var parts []string
	for _, value := range values {
		if len(value) >= shortestHidden {
			h.values = append(h.values, value)
		}
		for _, part := range strings.FieldsFunc(value, isEscaped) {
			if len(part) >= shortestPart {
				parts = append(parts, part, hidden)
			}
		}
	}
	slices.SortFunc(h.values, func(a, b string) int { return len(b) - len(a) })
	h.parts = strings.NewReplacer(parts...)
	return h
}

// Replace returns text with hidden secrets. It also finds secrets that contain escapes such as \u0061.
func (h hider) Replace(text string) string {
	for _, value := range h.values {
		text = replaceDecoded(text, value)
	}
	return h.parts.Replace(text)
}

// replaceDecoded hides a secret in a text, even if some of its characters are escaped.
func replaceDecoded(text, value string) string {
	text = strings.ReplaceAll(text, value, hidden)
	decoded, at := decodeEscapes(text)
	var out strings.Builder
	rest := 0 // out contains the text before this offset
	for from := 0; ; {
		i := strings.Index(decoded[from:], value)
		if i < 0 {
			out.WriteString(text[rest:])
			return out.String()
		}
		i += from
		from = i + len(value)
		out.WriteString(text[rest:at[i]] + hidden)
		rest = at[from]
	}
}

// decodeEscapes decodes the escapes in JSON, TOML and YAML strings. It also returns the offset in the text for each
// byte of the result, and for the end of the result.
func decodeEscapes(text string) (decoded string, at []int) {
	var out []byte
	for i := 0; i < len(text); {
		r, n := escapeAt(text[i:])
		if n == 0 {
			out, at = append(out, text[i]), append(at, i)
			i++
			continue
		}
		for _, b := range utf8.AppendRune(nil, r) {
			out, at = append(out, b), append(at, i)
		}
		i += n
	}
	return string(out), append(at, len(text))
}

// escapeAt decodes the escape at the beginning of text. It returns the character and the length of the escape, which is
// 0 if text does not begin with an escape.
func escapeAt(text string) (r rune, length int) {
	const shortEscape = 2
	if len(text) < shortEscape || text[0] != '\\' {
		return 0, 0
	}
	if digits := map[byte]int{'x': 2, 'u': 4, 'U': 8}[text[1]]; digits > 0 {
		return hexEscape(text, digits)
	}
	if i := strings.IndexByte(`"\/'bfnrt`, text[1]); i >= 0 {
		return rune("\"\\/'\b\f\n\r\t"[i]), shortEscape
	}
	return 0, 0
}

func hexEscape(text string, digits int) (r rune, length int) {
	length = len(`\u`) + digits
	if len(text) < length {
		return 0, 0
	}
	code, err := strconv.ParseUint(text[len(`\u`):length], 16, 31)
	if err != nil {
		return 0, 0
	}
	r = rune(code)
	if utf16.IsSurrogate(r) && strings.HasPrefix(text[length:], `\u`) {
		low, n := hexEscape(text[length:min(len(text), 2*length)], digits)
		if pair := utf16.DecodeRune(r, low); n > 0 && pair != utf8.RuneError {
			return pair, length + n
		}
	}
	return r, length
}

// isEscaped reports whether a string in a client's file may contain an escape instead of the given character.
func isEscaped(r rune) bool { return r < ' ' || r > '~' || strings.ContainsRune(`"'\/<>&`, r) }
