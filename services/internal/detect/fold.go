package detect

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// fold returns a text in a normalized form. Invisible characters are removed, and JSON escapes are resolved. Decimal
// digits of all scripts and the full-width forms of ASCII are replaced with ASCII, and all kinds of dashes and spaces
// are replaced with `-` and a space. offsets[i] is the offset that byte i of the result has in the original text, and
// offsets[len(result)] is the length of the original text. offsets is nil if nothing is replaced or removed.
func fold(text string) (folded string, offsets []int) {
	first := 0
	for first < len(text) && text[first] < utf8.RuneSelf && text[first] != '\\' {
		first++
	}
	if first == len(text) {
		return text, nil
	}
	out, changed := make([]byte, 0, len(text)), false
	offsets = make([]int, 0, len(text)+1)
	for at := 0; at < len(text); {
		r, size, isEscape := nextRune(text[at:])
		with, keep := foldRune(r)
		if changed = changed || isEscape || !keep || with != r; keep {
			before := len(out)
			if isEscape || with != r {
				out = utf8.AppendRune(out, with)
			} else {
				out = append(out, text[at:at+size]...)
			}
			for i := range len(out) - before {
				offset := at
				if !isEscape && with == r {
					offset += i
				}
				offsets = append(offsets, offset)
			}
		}
		at += size
	}
	if !changed {
		return text, nil
	}
	return string(out), append(offsets, len(text))
}

// nextRune returns the first rune of a text and its length in bytes. If the text begins with a JSON escape (RFC 8259,
// section 7), nextRune returns the rune that the escape represents. In JSON inside a JSON string, an escape begins with
// several backslashes. Backslashes that do not begin an escape are returned together, as one backslash.
func nextRune(text string) (r rune, size int, isEscape bool) {
	if text[0] != '\\' {
		r, size = utf8.DecodeRuneInString(text)
		return r, size, false
	}
	for size < len(text) && text[size] == '\\' {
		size++
	}
	if unit, ok := codeUnit(text[size:]); ok {
		size += unitLength
		if !utf16.IsSurrogate(unit) {
			return unit, size, true
		}
		rest := strings.TrimLeft(text[size:], `\`)
		if low, ok := codeUnit(rest); ok && len(rest) < len(text)-size && utf16.DecodeRune(unit, low) != utf8.RuneError {
			return utf16.DecodeRune(unit, low), len(text) - len(rest) + unitLength, true
		}
		return utf8.RuneError, size, true
	}
	const short, meant = `"/bfnrt`, "\"/\b\f\n\r\t"
	if i := strings.IndexByte(short, at(text, size)); i >= 0 && size < len(text) {
		return rune(meant[i]), size + 1, true
	}
	return '\\', size, false
}

// unitLength is the length of an escape such as u00e9 without its backslash.
const unitLength = 5

// codeUnit returns the code unit of an escape such as u00e9.
func codeUnit(text string) (unit rune, ok bool) {
	if len(text) < unitLength || text[0] != 'u' {
		return 0, false
	}
	n, err := strconv.ParseUint(text[1:unitLength], 16, 16)
	return rune(n), err == nil
}

// foldRune returns the ASCII character that replaces a rune, or the rune itself. keep is false if the rune is
// invisible.
func foldRune(r rune) (with rune, keep bool) {
	switch {
	case r < utf8.RuneSelf:
		return r, true
	case isInvisible(r):
		return 0, false
	case 0xff01 <= r && r <= 0xff5e: // FULLWIDTH EXCLAMATION MARK to FULLWIDTH TILDE
		return r - 0xff01 + '!', true
	case unicode.Is(unicode.Nd, r):
		return '0' + digitOf(r), true
	case unicode.Is(unicode.Pd, r), r == 0x2212: // MINUS SIGN
		return '-', true
	case unicode.Is(unicode.Zs, r):
		return ' ', true
	}
	return r, true
}

// digitOf returns the value of a decimal digit. In Unicode, the ten digits of a script have consecutive code points,
// and the ranges of package unicode consist of whole groups of ten.
func digitOf(r rune) rune {
	for _, group := range unicode.Nd.R16 {
		if rune(group.Lo) <= r && r <= rune(group.Hi) {
			return (r - rune(group.Lo)) % 10
		}
	}
	for _, group := range unicode.Nd.R32 {
		if rune(group.Lo) <= r && r <= rune(group.Hi) {
			return (r - rune(group.Lo)) % 10
		}
	}
	return 0
}

// isInvisible reports whether a rune is not displayed. Such runes are format characters, variation selectors, fillers
// and combining marks that join graphemes.
func isInvisible(r rune) bool {
	switch {
	case unicode.Is(unicode.Cf, r), unicode.Is(unicode.Variation_Selector, r), unicode.Is(unicode.Other_Default_Ignorable_Code_Point, r):
		return true
	}
	return false
}
