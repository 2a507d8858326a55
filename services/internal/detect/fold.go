package detect

import (
	"unicode"
	"unicode/utf8"
)

// fold returns a text without its invisible characters, with decimal digits of all scripts and the full-width forms of
// ASCII replaced by ASCII, and with dashes and spaces of all kinds replaced by `-` and a space. offsets[i] is the
// offset in the original text of byte i of the result, and offsets[len(result)] is the length of the original text.
// offsets is nil if nothing is replaced or removed.
func fold(text string) (folded string, offsets []int) {
	first := 0
	for first < len(text) && text[first] < utf8.RuneSelf {
		first++
	}
	if first == len(text) {
		return text, nil
	}
	out, changed := make([]byte, 0, len(text)), false
	offsets = make([]int, 0, len(text)+1)
	for at := 0; at < len(text); {
		r, size := utf8.DecodeRuneInString(text[at:])
		switch with, keep := foldRune(r); {
		case r < utf8.RuneSelf || keep && with == r:
			for i := range size {
				out, offsets = append(out, text[at+i]), append(offsets, at+i)
			}
		case keep:
			out, offsets, changed = append(out, byte(with)), append(offsets, at), true
		default:
			changed = true
		}
		at += size
	}
	if !changed {
		return text, nil
	}
	return string(out), append(offsets, len(text))
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

// digitOf returns the value of a decimal digit. In Unicode, the ten digits of a script follow each other, and the
// ranges of package unicode consist of whole groups of ten.
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

// isInvisible reports whether a rune is not shown: format characters, variation selectors, fillers and combining marks
// that join graphemes.
func isInvisible(r rune) bool {
	switch {
	case unicode.Is(unicode.Cf, r), unicode.Is(unicode.Variation_Selector, r), unicode.Is(unicode.Other_Default_Ignorable_Code_Point, r):
		return true
	}
	return false
}
