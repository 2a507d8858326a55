package view

import (
	"strings"
	"unicode"
	"unicode/utf16"
)

// blanks are characters that Unicode counts as printable and that show nothing, or
// change how their neighbour shows.
var blanks = &unicode.RangeTable{
	R16: []unicode.Range16{
		{Lo: 0x034f, Hi: 0x034f, Stride: 1}, {Lo: 0x115f, Hi: 0x1160, Stride: 1}, {Lo: 0x17b4, Hi: 0x17b5, Stride: 1},
		{Lo: 0x180b, Hi: 0x180f, Stride: 1}, {Lo: 0x2800, Hi: 0x2800, Stride: 1}, {Lo: 0x3164, Hi: 0x3164, Stride: 1},
		{Lo: 0xfe00, Hi: 0xfe0f, Stride: 1}, {Lo: 0xffa0, Hi: 0xffa0, Stride: 1},
	},
	R32: []unicode.Range32{{Lo: 0xe0100, Hi: 0xe01ef, Stride: 1}},
}

// hides tells whether a character is shown as an escape: controls, formats such as
// bidirectional overrides, separators but the blank, blanks of other names, and
// what is no character.
func hides(r rune) bool { return !unicode.IsPrint(r) || unicode.Is(blanks, r) }

// Escape writes a text so that it shows what it holds: what hides, and the
// backslash, as `\u` and four hexadecimal digits for each UTF-16 unit.
func Escape(text string) string {
	if !strings.ContainsFunc(text, func(r rune) bool { return r == '\\' || hides(r) }) {
		return text
	}
	var out strings.Builder
	for _, r := range text {
		switch {
		case r == '\\':
			out.WriteString(`\\`)
		case hides(r):
			out.WriteString(units(r))
		default:
			out.WriteRune(r)
		}
	}
	return out.String()
}

// quote writes a text as a JSON string in the same manner.
func quote(text string) string {
	var out strings.Builder
	out.WriteByte('"')
	for _, r := range text {
		switch {
		case r == '"' || r == '\\':
			out.WriteByte('\\')
			out.WriteRune(r)
		case hides(r):
			out.WriteString(units(r))
		default:
			out.WriteRune(r)
		}
	}
	out.WriteByte('"')
	return out.String()
}

// units writes a character as escapes. A call of 4 MiB may be made of nothing else.
func units(r rune) string {
	if a, b := utf16.EncodeRune(r); a != unicode.ReplacementChar {
		return unit(a) + unit(b)
	}
	return unit(r)
}

func unit(r rune) string {
	const digits = "0123456789abcdef"
	return string([]byte{'\\', 'u', digits[r>>12&15], digits[r>>8&15], digits[r>>4&15], digits[r&15]})
}
