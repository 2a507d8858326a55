package safetext

import (
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// invisibleRanges contains characters that Unicode classifies as printable although they are invisible or change the
// appearance of neighboring characters.
var invisibleRanges = &unicode.RangeTable{
	R16: []unicode.Range16{
		{Lo: 0x034f, Hi: 0x034f, Stride: 1}, {Lo: 0x115f, Hi: 0x1160, Stride: 1}, {Lo: 0x17b4, Hi: 0x17b5, Stride: 1},
		{Lo: 0x180b, Hi: 0x180f, Stride: 1}, {Lo: 0x2800, Hi: 0x2800, Stride: 1}, {Lo: 0x3164, Hi: 0x3164, Stride: 1},
		{Lo: 0xfe00, Hi: 0xfe0f, Stride: 1}, {Lo: 0xffa0, Hi: 0xffa0, Stride: 1},
	},
	R32: []unicode.Range32{{Lo: 0xe0100, Hi: 0xe01ef, Stride: 1}},
}

// IsHidden reports whether a character must be shown as an escape. Such characters are control characters, format
// characters such as bidirectional overrides, separators other than the space, other invisible characters, and invalid
// characters.
func IsHidden(r rune) bool { return !unicode.IsPrint(r) || unicode.Is(invisibleRanges, r) }

// Escape returns text in which every character is visible. A hidden character is replaced with `\u` and four
// hexadecimal digits for each UTF-16 code unit. A backslash is doubled.
func Escape(text string) string {
	if !strings.ContainsFunc(text, func(r rune) bool { return r == '\\' || IsHidden(r) }) {
		return text
	}
	var out strings.Builder
	for _, r := range text {
		switch {
		case r == '\\':
			out.WriteString(`\\`)
		case IsHidden(r):
			out.WriteString(escapesOf(r))
		default:
			out.WriteRune(r)
		}
	}
	return out.String()
}

// Quote returns text as a JSON string. Hidden characters are escaped as in [Escape].
func Quote(text string) string {
	var out strings.Builder
	out.WriteByte('"')
	for _, r := range text {
		switch {
		case r == '"' || r == '\\':
			out.WriteByte('\\')
			out.WriteRune(r)
		case IsHidden(r):
			out.WriteString(escapesOf(r))
		default:
			out.WriteRune(r)
		}
	}
	out.WriteByte('"')
	return out.String()
}

// Line returns text as one line that has no effect on a terminal. Unlike [Escape], it does not double backslashes,
// because the text may already contain escapes. It also does not replace characters that are only invisible, because
// people make no decision based on this text.
func Line(text string) string {
	return replace(text, func(r rune) bool { return !unicode.IsPrint(r) })
}

// replace replaces the characters for which isReplaced returns true with escapes, and invalid bytes with U+FFFD.
func replace(text string, isReplaced func(rune) bool) string {
	if !strings.ContainsFunc(text, isReplaced) && utf8.ValidString(text) {
		return text
	}
	var out strings.Builder
	for _, r := range text {
		if isReplaced(r) {
			out.WriteString(escapesOf(r))
		} else {
			out.WriteRune(r)
		}
	}
	return out.String()
}

// Lines applies [Line] to each line of a text. A tab becomes four spaces.
func Lines(text string) string { return eachLine(text, Line) }

// VisibleLines is like [Lines], but also escapes characters that are only invisible, because a person makes a decision
// based on the text.
func VisibleLines(text string) string {
	return eachLine(text, func(line string) string { return replace(line, IsHidden) })
}

func eachLine(text string, escape func(line string) string) string {
	var out strings.Builder
	for line := range strings.Lines(text) {
		body, ended := strings.CutSuffix(line, "\n")
		out.WriteString(escape(strings.ReplaceAll(body, "\t", "    ")))
		if ended {
			out.WriteByte('\n')
		}
	}
	return out.String()
}

// escapesOf returns the escapes that represent a character. It must be fast, because a call of 4 MiB may consist of
// hidden characters only.
func escapesOf(r rune) string {
	if a, b := utf16.EncodeRune(r); a != unicode.ReplacementChar {
		return escapeUnit(a) + escapeUnit(b)
	}
	return escapeUnit(r)
}

func escapeUnit(r rune) string {
	const digits = "0123456789abcdef"
	return string([]byte{'\\', 'u', digits[r>>12&15], digits[r>>8&15], digits[r>>4&15], digits[r&15]})
}
