package app_test

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"unicode"

	"github.com/sluice-mesh/sluice/services/internal/app"
)

// Cases X7, S2. A value in a log record contains control characters and a line break. In text logs and JSON logs, it
// can neither control a terminal nor begin a line.
func TestNewLog_EscapesControlCharacters(t *testing.T) {
	t.Parallel()
	for _, text := range []bool{true, false} {
		var out bytes.Buffer
		app.NewLog(&out, "test", text, slog.LevelInfo).InfoContext(t.Context(), "said", "what", "\x1b[2J\u009b2J\r\u202e\u2028\nFORGED")
		if got := strings.TrimSuffix(out.String(), "\n"); strings.ContainsFunc(got, func(r rune) bool { return !unicode.IsPrint(r) }) {
			t.Errorf("%q is logged", got)
		}
	}
}
