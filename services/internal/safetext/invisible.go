package safetext

import (
	"unicode"
	"unicode/utf8"
)

// These are code points that [Invisible] either accepts or finds, depending on their neighbors.
const (
	zeroWidthNonJoiner = 0x200c
	zeroWidthJoiner    = 0x200d
	textStyle          = 0xfe0e // variation selector 15
	emojiStyle         = 0xfe0f // variation selector 16
	keycap             = 0x20e3
	blackFlag          = 0x1f3f4
	firstTag           = 0xe0020
	lastTag            = 0xe007e
	cancelTag          = 0xe007f
)

// maxFlagTags is the maximum number of tag characters in the flag of a region, without the cancel tag. A region such as
// `gbeng` needs five tags, so there is space for one more.
const maxFlagTags = 6

// joiningScripts lists the scripts whose words need joiners (Unicode 16, section 23.2, and UAX 31, section 2.3).
var joiningScripts = []*unicode.RangeTable{
	unicode.Arabic, unicode.Syriac, unicode.Mongolian, unicode.Nko, unicode.Devanagari, unicode.Bengali, unicode.Gurmukhi, unicode.Gujarati,
	unicode.Oriya, unicode.Tamil, unicode.Telugu, unicode.Kannada, unicode.Malayalam, unicode.Sinhala, unicode.Khmer, unicode.Myanmar, unicode.Tibetan,
}

// rightToLeftScripts lists scripts whose words can be next to direction marks.
var rightToLeftScripts = []*unicode.RangeTable{unicode.Arabic, unicode.Hebrew, unicode.Syriac, unicode.Thaana, unicode.Nko}

// Invisible returns the byte offset of the first character that is invisible or changes the appearance of neighboring
// characters. It returns -1 if there is none. It finds the characters for which [IsHidden] returns true, with two
// exceptions.
//
// Line ends, tabs, and the special spaces of French, Chinese, Japanese and Korean are accepted everywhere. Characters
// that emoji or a script need are accepted where they are needed. These are a joiner between emoji, a variation
// selector after a symbol, the tags of a flag, joiners in scripts whose letters join, and direction marks next to
// right-to-left scripts.
func Invisible(text string) int {
	var before, base rune // the previous character, and the last visible character
	for at := 0; at < len(text); {
		r, size := utf8.DecodeRuneInString(text[at:])
		after, _ := utf8.DecodeRuneInString(text[at+size:])
		switch {
		case r == utf8.RuneError && size == 1: // invalid bytes are shown as U+FFFD
		case r == '\n', r == '\t', r == '\r' && after == '\n', r == 0xa0, r == 0x202f, r == 0x3000, isNewEmoji(r), !IsHidden(r):
		case r == blackFlag:
		case firstTag <= r && r <= lastTag && before == blackFlag:
			end := flagEnd(text[at:])
			if end == 0 {
				return at
			}
			size = end
			r = cancelTag
		case !isNeeded(r, before, base, after):
			return at
		}
		if !IsHidden(r) {
			base = r
		}
		before = r
		at += size
	}
	return -1
}

// isNewEmoji reports whether r is in the Unicode blocks for emoji. This includes code points that this version of
// Unicode has not assigned yet.
func isNewEmoji(r rune) bool { return 0x1f300 <= r && r <= 0x1faff && !unicode.Is(unicode.Cf, r) }

// flagEnd returns the length in bytes of the flag tags at the beginning of tags, including the cancel tag. It returns 0
// if the tags do not form a flag.
func flagEnd(tags string) int {
	for at, count := 0, 0; at < len(tags); count++ {
		r, size := utf8.DecodeRuneInString(tags[at:])
		at += size
		switch {
		case r == cancelTag && count > 0:
			return at
		case count == maxFlagTags, r < 0xe0030 || 0xe0039 < r && r < 0xe0061 || 0xe007a < r: // only digits and small letters are tags of a flag
			return 0
		}
	}
	return 0
}

// isNeeded reports whether a hidden character is needed between its neighbors before and after. base is the last
// visible character.
func isNeeded(r, before, base, after rune) bool {
	switch r {
	case emojiStyle, textStyle:
		return before == base && (isSymbol(base) || after == keycap)
	case zeroWidthJoiner:
		return isSymbol(base) && (before == base || before == emojiStyle || before == cancelTag) && isSymbol(after) ||
			before == base && unicode.In(base, joiningScripts...)
	case zeroWidthNonJoiner:
		return before == base && unicode.In(base, joiningScripts...) && unicode.In(after, joiningScripts...)
	case 0x200e, 0x200f, 0x061c:
		return before == base && (unicode.In(base, rightToLeftScripts...) || unicode.In(after, rightToLeftScripts...))
	case 0x180b, 0x180c, 0x180d, 0x180f:
		return before == base && unicode.Is(unicode.Mongolian, base)
	}
	return 0xe0100 <= r && r <= 0xe01ef && before == base && unicode.Is(unicode.Han, base)
}

// isSymbol reports whether r can be part of an emoji.
func isSymbol(r rune) bool {
	return unicode.In(r, unicode.So, unicode.Sk, unicode.Sm) || isNewEmoji(r) || r == 0x203c || r == 0x2049 || r == 0x3030 || r == 0x303d
}
