package safetext_test

import (
	"fmt"
	"testing"

	"github.com/sluice-mesh/sluice/services/internal/safetext"
)

// Case T7. A text of Latin letters contains an invisible character, or a character that changes the appearance of its
// neighbors. Invisible finds the character.
func TestInvisible_FindsInvisibleCharacters(t *testing.T) {
	t.Parallel()
	for _, r := range []rune{
		0x00ad, 0x034f, 0x061c, 0x115f, 0x1160, 0x17b4, 0x17b5, 0x180b, 0x180e, 0x200b, 0x200c, 0x200d, 0x200e, 0x200f, 0x2028, 0x2029, 0x202a,
		0x202b, 0x202c, 0x202d, 0x202e, 0x2060, 0x2061, 0x2062, 0x2063, 0x2064, 0x2066, 0x2067, 0x2068, 0x2069, 0x206a, 0x206f, 0x2800, 0x3164,
		0xfe00, 0xfe0e, 0xfe0f, 0xfeff, 0xffa0, 0xfff9, 0xfffb, 0x1d173, 0xe0001, 0xe0041, 0xe007f, 0xe0100, 0x0000, 0x0007, 0x001b, 0x007f,
		0x0085, 0x2003, 0x1680, 0xe000, 0x10ffff,
	} {
		text := fmt.Sprintf("Get a n%cote.", r)
		if at := safetext.Invisible(text); at != 7 {
			t.Errorf("U+%04X is found at %d, want 7", r, at)
		}
	}
}

func TestInvisible_AcceptsCharactersNeededByEmojiAndScripts(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"", "Get a note.\n\tAnd more.\r\nThere.", "Récupère\u00a0: une note\u202f!", "取得\u3000笔记", "👩\u200d💻 works", "🏳\ufe0f\u200d🌈", "❤\ufe0f", "1\ufe0f\u20e3 first",
		"👍🏽 yes", "👩🏽\u200d💻", "🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f flag", "می\u200cخواهم", "क्\u200dष", "שלום\u200f abc", "葛\U000e0100", "a\xffb", "⚙\ufe0e",
		"🏗\ufe0f Creates a table", "\U0001fabf",
	} {
		if at := safetext.Invisible(text); at >= 0 {
			t.Errorf("%+q: %d", text, at)
		}
	}
}

// Some hidden characters are needed by emoji and scripts. In positions where they are not needed, Invisible finds them.
func TestInvisible_FindsNeededCharactersInOtherPositions(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{
		"❤\ufe0f\ufe0f":  6, // a second selector after an emoji can contain data
		"❤\ufe0e\ufe0f":  6,
		"👩\u200d\u200d💻": 4,
		"👩\u200dcode":    4,
		"می\u200cabc":    4,
		"क\u200d\u200d":  6,
		"abc\u200f def":  3,
		"🏴\U000e0067abc": 4, // a flag without a cancel tag
		"🏴\U000e007f":    4, // a flag without a region
		"🏴\U000e0069\U000e0067\U000e006e\U000e006f\U000e0072\U000e0065\U000e0061\U000e006c\U000e007f": 4, // text in the tags of a flag
		"a\U000e0067\U000e007f": 1,
		"葛\U000e0100\U000e0101": 7,
		"a\r b":                 1,
	} {
		if at := safetext.Invisible(text); at != want {
			t.Errorf("%+q: %d, want %d", text, at, want)
		}
	}
}
