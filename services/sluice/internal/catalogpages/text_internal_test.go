package catalogpages

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/sluice-mesh/sluice/services/internal/safetext"
)

func TestRuns_SplitHiddenCharacters(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, text string
		lines      bool
		want       []run
	}{
		{"a plain text", "Export it.", false, []run{{Text: "Export it."}}},
		{"nothing", "", false, nil},
		{"a change of direction", "pay\u202eback", false, []run{{Text: "pay"}, {`\u202e`, true}, {Text: "back"}}},
		{"several that hide", "\u200b\u2066a", false, []run{{`\u200b\u2066`, true}, {Text: "a"}}},
		{"a line break where no lines are", "a\nb", false, []run{{Text: "a"}, {`\u000a`, true}, {Text: "b"}}},
		{"lines", "a\r\nb\n\tc", true, []run{{Text: "a\nb\n    c"}}},
		{"a return alone", "a\rb", true, []run{{Text: "a"}, {`\u000d`, true}, {Text: "b"}}},
		{"a byte that is no character", "a\xffb", false, []run{{Text: "a"}, {`\xff`, true}, {Text: "b"}}},
		{"the character for such a byte", "a\ufffdb", false, []run{{Text: "a\ufffdb"}}},
		{"an emoji", "⚠️ careful", false, []run{{Text: "⚠️ careful"}}},
		{"its sign elsewhere", "a\ufe0f", false, []run{{Text: "a"}, {`\ufe0f`, true}}},
		{"its sign twice", "⚠\ufe0f\ufe0f", false, []run{{Text: "⚠\ufe0f"}, {`\ufe0f`, true}}},
		{"a tag beyond the first plane", "\U000e0041", false, []run{{`\udb40\udc41`, true}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(tt.want, runs(tt.text, tt.lines)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestRuns_ShowTheWholeText(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		text := string(rapid.SliceOf(rapid.OneOf(rapid.Byte(), rapid.SampledFrom([]byte("\n\r\t \xe2\x80\xae<&")))).Draw(t, "text"))
		for _, got := range []string{shown(text), shownLines(text), short(shown(text), 10), shown(summary(text))} {
			if !utf8.ValidString(got) {
				t.Fatalf("%q is shown as %q", text, got)
			}
			for _, r := range got {
				if r != '\n' && r != 0xfe0f && safetext.IsHidden(r) {
					t.Fatalf("%q is shown as %q", text, got)
				}
			}
		}
	})
}

func TestSummary_ReturnsTheFirstSentence(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("word ", 100)
	for text, want := range map[string]string{
		"":                                "",
		"Export it. Use it when.":         "Export it.",
		"Export\n  a thing\tof v1.2 here": "Export a thing of v1.2 here",
		long:                              strings.TrimSpace(long[:140]) + "…",
	} {
		if got := summary(text); got != want {
			t.Errorf("%q is summed up as %q, want %q", text, got, want)
		}
	}
}
