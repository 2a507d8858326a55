package cli

import (
	"fmt"
	"strings"
	"testing"
)

// Each character of a secret may be escaped in any of the ways that JSON, TOML and YAML offer. The hider hides the
// secret nevertheless.
func TestHider_HidesEscapedSecrets(t *testing.T) {
	t.Parallel()
	const value = "aB/c\"d\\e😀f"
	h := newHider([]string{value, "abc"})
	forms := map[string]func(rune) string{
		"JSON": func(r rune) string {
			if r > 0xffff {
				return `\ud83d\ude00`
			}
			return fmt.Sprintf(`\u%04x`, r)
		},
		"TOML": func(r rune) string { return fmt.Sprintf(`\U%08X`, r) },
		"plain": func(r rune) string {
			if strings.ContainsRune(`"\/`, r) {
				return `\` + string(r)
			}
			return string(r)
		},
	}
	for name, form := range forms {
		for only := -1; only < len([]rune(value)); only++ { // -1 for all characters
			var text strings.Builder
			for i, r := range []rune(value) {
				if only < 0 || i == only || strings.ContainsRune(`"\`, r) {
					text.WriteString(form(r))
				} else {
					text.WriteRune(r)
				}
			}
			if got := h.Replace(`{"k": "` + text.String() + `", "n": "x\ny"}`); got != `{"k": "[hidden]", "n": "x\ny"}` {
				t.Errorf("%s, character %d: %s becomes %s", name, only, &text, got)
			}
		}
	}
	if got := h.Replace(value + "abc"); got != "[hidden]abc" {
		t.Errorf("the text becomes %s", got)
	}
}
