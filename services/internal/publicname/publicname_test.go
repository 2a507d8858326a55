package publicname_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/sluice-mesh/sluice/services/internal/publicname"
)

// Case X9. URIs are written in different forms. The shown names do not contain any part of a URI that may be a secret.
func TestOf_RemovesSecretsOfURIs(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"read_file":                              "read_file",
		"":                                       "",
		"file:///srv/a%20b":                      "file:///srv/a%20b",
		"https://api.example/v1?key=secret":      "https://api.example/v1",
		"https://api.example/v1#secret?x":        "https://api.example/v1",
		"https://api.example/v1?x#secret":        "https://api.example/v1",
		"https://api.example?secret":             "https://api.example",
		"note:one?secret":                        "note:one",
		"?secret":                                "",
		"#secret":                                "",
		"https://ana:secret@api.example/v1":      "https://api.example/v1",
		"https://ana:se@cret@api.example":        "https://api.example",
		"https://secret@":                        "https://",
		"https://api.example/@ana":               "https://api.example/@ana",
		"https://api.example/a//b:secret@c":      "https://api.example/a//b:secret@c",
		`https:\\ana:secret@api.example\v1`:      `https:\\api.example\v1`,
		"https:/ana:secret@api.example/v1":       "https:/api.example/v1",
		"https:///ana:secret@api.example":        "https:///api.example",
		`https:/\/ana:secret@api.example`:        `https:/\/api.example`,
		"//ana:secret@api.example/v1":            "//api.example/v1",
		`\\ana:secret@api.example\v1`:            `\\api.example\v1`,
		"scheme/x//ana:secret@api.example/v1":    "scheme/x//api.example/v1",
		"/srv/a@b":                               "/srv/a@b",
		"srv/a@b":                                "srv/a@b",
		"mailto:ana@example.com":                 "mailto:ana@example.com",
		"a//b.c":                                 "a//b.c",
		"data:text/plain,secret":                 "data:",
		"DaTa:text/plain,secret":                 "DaTa:",
		"data:":                                  "data:",
		"data":                                   "data",
		"metadata:x":                             "metadata:x",
		"data:text/plain;x?secret":               "data:",
		"mcp.files+https://ana:secret@a.example": "mcp.files+https://a.example",
	} {
		if got := publicname.Of(name); got != want {
			t.Errorf("%q is shown as %q, want %q", name, got, want)
		}
	}
}

func TestOf_ShortensLongNames(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		strings.Repeat("a", 256):                            strings.Repeat("a", 256),
		strings.Repeat("a", 257):                            strings.Repeat("a", 256) + "…",
		strings.Repeat("é", 129):                            strings.Repeat("é", 128) + "…",
		"x" + strings.Repeat("é", 128):                      "x" + strings.Repeat("é", 127) + "…",
		strings.Repeat("a", 255) + "世界":                     strings.Repeat("a", 255) + "…",
		"https://h/" + strings.Repeat("a", 300):             "https://h/" + strings.Repeat("a", 246) + "…",
		strings.Repeat("a", 256) + "?" + "secret":           strings.Repeat("a", 256),
		"https://" + strings.Repeat("u", 300) + "@h/secret": "https://h/secret",
	} {
		if got := publicname.Of(name); got != want {
			t.Errorf("%.20q with %d bytes is shown as %q", name, len(name), got)
		}
	}
}

// Case X9. For arbitrary input, a shown name does not contain a query, a fragment, or the user of a URI with an
// authority.
func FuzzOf(f *testing.F) {
	for _, seed := range []string{"https://ana:secret@h/p?q#f", `\\u@h\x`, "data:,x", "a\xffb", strings.Repeat("é", 200)} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, name string) {
		got := publicname.Of(name)
		if strings.ContainsAny(got, "?#") || len(got) > 256+len("…") {
			t.Errorf("%q is shown as %q", name, got)
		}
		if utf8.ValidString(name) && !utf8.ValidString(got) {
			t.Errorf("%q is shown as %q, which is not valid UTF-8", name, got)
		}
		if again := publicname.Of(got); len(again) > len(got) {
			t.Errorf("%q is shown as %q, and that as %q", name, got, again)
		}
		if secret := publicname.Of("https://secret-of-ana:" + strings.Trim(name, "/\\@") + "@h/"); strings.Contains(secret, "secret-of-ana") && !strings.ContainsAny(name, `/\?#`) {
			t.Errorf("the user of %q is shown as %q", name, secret)
		}
	})
}
