package catalogpages

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestStem_IsValidOnEverySystem(t *testing.T) {
	t.Parallel()
	const digest = 2 * 16 // after ~, in hexadecimal
	for name, want := range map[string]string{
		"wasm_agent_export": "wasm_agent_export",
		"fs.read":           "fs.read",
		"getIssue":          "getissue~",
		"GetIssue":          "getissue~",
		"..":                "name~",
		"":                  "name~",
		"../../etc/passwd":  "etc-passwd~",
		"con":               "con~",
		"nul.txt":           "nul-txt~",
		"a~2":               "a-2~",
		"löschen":           "l-schen~",
	} {
		got := stem(name)
		if strings.HasSuffix(want, "~") && len(got) > digest {
			got = got[:len(got)-digest]
		}
		if got != want {
			t.Errorf("%q is called %q, want %q", name, stem(name), want)
		}
	}
}

// fits matches file names that are valid on every system.
var fits = regexp.MustCompile(`^[a-z0-9_][a-z0-9_.~-]*$`)

// names generates names that servers use, and names that are likely to collide.
func names() *rapid.Generator[string] {
	return rapid.OneOf(
		rapid.String(),
		rapid.StringMatching(`[a-zA-Z0-9_./~-]{0,130}`),
		rapid.SampledFrom([]string{"..", ".", "/", "con", "CON", "com1.x", "a", "A", "a.", "a ", "ſ", "s", "K", "k", "é", "e\u0301", strings.Repeat("ä", 512), strings.Repeat("a", 1024)}),
		rapid.Map(rapid.StringMatching(`[a-zA-Z]{1,8}`), stem), // a name that looks like the file name of another name
	)
}

// Tools with different names have different files in a directory, on every system. This includes systems that ignore
// case, or that ignore blanks and dots at the end of a name.
func TestStem_DiffersForDifferentNames(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		one, other := names().Draw(t, "one"), names().Draw(t, "other")
		got := stem(one)
		file := got + ".html"
		if !fits.MatchString(got) || len(got) > 100 || !filepath.IsLocal(file) || filepath.Base(file) != file || reserved.MatchString(file) {
			t.Fatalf("%q is called %q", one, got)
		}
		if got != stem(one) {
			t.Fatalf("%q is not always called %q", one, got)
		}
		if one != other && strings.EqualFold(got, stem(other)) {
			t.Fatalf("%q and %q are both called %q", one, other, got)
		}
		for n := range 3 {
			if pageName(got, n+1) == stem(other) && one != other {
				t.Fatalf("page %d of %q is called as %q is", n+1, one, other)
			}
		}
	})
}
