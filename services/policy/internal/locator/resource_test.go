package locator_test

import (
	"net/url"
	"path"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/sluice-mesh/sluice/services/policy/internal/locator"
)

// resources contains URIs, each with a part of the reason why it is not plain. The reason is empty if the URI is plain.
var resources = []struct{ text, want string }{
	{"file:///srv/notes/today.md", ""},
	{"file:///srv/a%20b/%C3%A9.md", ""},
	{"file:///c:/x", ""},
	{"note://Personal/today", ""},
	{"note:///today", ""},
	{"repo://Owner_x/name/.github/x", ""},
	{"postgres://user@db.example:5432/orders/schema", ""},
	{"config:app", ""},
	{"urn:isbn:0451450523", ""},
	{"mcp.notes+file:///srv/x", ""},
	{"https://api.example.com/v1?q=a%20b&x=[1]", ""},
	{"https://api.example.com:8443/v1", ""},
	{"https://[2001:db8::1]/x", ""},
	{"library://shelf", ""},
	{"x://h", ""},

	{"", "is empty"},
	{"notes/today", "not begin with a scheme"},
	{"/etc/passwd", "not begin with a scheme"},
	{"File:///etc/passwd", "a scheme in lower case"},
	{"FILE:///etc/passwd", "a scheme in lower case"},
	{"1x:y", "not begin with a scheme"},
	{":x", "not begin with a scheme"},
	{"x:", "nothing after"},
	{"file:/etc/passwd", "one slash"},
	{"file:etc/passwd", "one slash"},
	{"file:////etc/passwd", "empty segment"},
	{"file://localhost/etc/passwd", "with a host"},
	{"file://127.0.0.1/etc/passwd", "with a host"},
	{"file:///etc/passwd#x", "a fragment"},
	{"file:///srv/../etc/passwd", ". or .."},
	{"file:///srv/./x", ". or .."},
	{"file:///srv/..;a/x", ". or .."},
	{"file:///srv/%2e%2e/etc", "some readers decode"},
	{"file:///srv/.%2e/etc", "some readers decode"},
	{"file:///srv%2Fx", "some readers decode"},
	{"file:///srv%252Fx", "some readers decode"},
	{"file:///srv%5Cx", "some readers decode"},
	{"file:///%65tc/passwd", "some readers decode"},
	{"file:///etc/passwd%00.md", "some readers decode"},
	{"file:///etc/passwd%", "two hex digits"},
	{"file:///etc/passwd%2", "two hex digits"},
	{"file:///etc//passwd", "empty segment"},
	{`file:///etc\passwd`, `contains a \`},
	{"file:///etc/passwd.", "ends with a dot"},
	{"file:///etc./passwd", "ends with a dot"},
	{"file:///etc/.../passwd", "dots and spaces"},
	{"file:///etc/passwd%20", "begins or ends with a space"},
	{"file:///u%CC%88", "normal form"},
	{"file:///%FF", "some readers decode"},
	{"file:///ü", "percent-encoded"},
	{"file:///a b", "percent-encoded"},
	{"file:///a\tb", "unprintable"},
	{"file:///{path}", "percent-encoded"},
	{"note://b\u00fccher/x", "percent-encoded"},
	{"note://a{b/x", "percent-encoded"},
	{"pg://a@b@host/x", "more than one @"},
	{"pg://host./x", "dot or a colon"},
	{"pg://host:/x", "dot or a colon"},
	{"pg://host:05/x", "a port"},
	{"pg://host:80:80/x", "a port"},
	{"pg://[::1]:80/x", ""},
	{"pg://a[::1]/x", "a port"},
	{"pg://[::1]x/x", "a port"},
	{"pg://h%6Fst/x", "some readers decode"},
	{"https://api.example.com:443/v1", "the default port"},
	{"https://api.example.com./v1", "dot or a colon"},
	{"https:api.example.com/v1", "two slashes"},
	{"https:///v1", "two slashes"},
	{"https://me@api.example.com/v1", "a user"},
	{"https://0x7f.1/", "take for an IP address"},
	{"https://h/?q=%41", "some readers decode"},
	{"https://h/?q=%0a", "some readers decode"},
	{"x:" + strings.Repeat("a", 4096), "longer"},
}

func TestCheckResource(t *testing.T) {
	t.Parallel()
	for _, tt := range resources {
		err := locator.CheckResource(tt.text)
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%q: %v, want %q", tt.text, err, tt.want)
		}
	}
	for template, want := range map[string]string{
		"file:///srv/{path}": "", "x://h/a{?q,r}": "", "x://h{/a*}{#b}": "", "x://{host}/a": "", "x:y": "",
		"X://{host}": "not begin with a scheme", "x://h/{a": "brace", "x://h/a}": "percent-encoded", "x://h/../{a}": ". or ..",
	} {
		err := locator.CheckTemplate(template)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v, want %q", template, err, want)
		}
	}
}

func TestReadings(t *testing.T) {
	t.Parallel()
	for uri, want := range map[string][]string{
		"file:///a":           {"file:///a", "file:///a/"},
		"x:a/":                {"x:a/", "x:a"},
		"x:a:b":               {"x:a:b"},
		"file:///c:/a::$D/b":  {"file:///c:/a/b"},
		"file:///c:a:b?q":     {"file:///c:a?q", "file:///c:a"},
		"file:///a%3a%3A$D":   {"file:///a", "file:///a/"},
		"x:a%3Bb/c%3Fd%23e":   {"x:a%3Bb/c%3Fd", "x:a%3Bb/c", "x:a/c", "x:a/c%3Fd%23e"},
		"https://h":           {"https://h", "https://h/"},
		"x:a;b/c?d":           {"x:a;b/c?d", "x:a;b/c", "x:a/c?d", "x:a/c", "x:a;b/c/", "x:a/c/"},
		"pg://me@h:5432/x":    {"pg://me@h:5432/x", "pg://h:5432/x", "pg://me@h/x", "pg://h/x"},
		"pg://[::1]:5432/x":   {"pg://[::1]:5432/x", "pg://[::1]/x"},
		"x://h/a?b=://c@d:1/": {"x://h/a?b=://c@d:1/", "x://h/a"},
	} {
		got := locator.Readings(uri)
		for _, one := range want {
			if !slices.Contains(got, one) {
				t.Errorf("%s is not read as %s: %q", uri, one, got)
			}
		}
		if got[0] != uri {
			t.Errorf("%s is read first as %s", uri, got[0])
		}
	}
}

// respell returns another spelling of a URI. Some servers interpret this spelling as the given URI.
func respell(t *rapid.T, uri string) string {
	scheme, rest, _ := strings.Cut(uri, ":")
	at := func(of string) int { return rapid.IntRange(0, len(of)-1).Draw(t, "place") }
	slash := strings.LastIndexByte(rest, '/') + 1
	switch rapid.IntRange(0, 14).Draw(t, "way") {
	case 0:
		i := at(scheme)
		scheme = scheme[:i] + strings.ToUpper(scheme[i:i+1]) + scheme[i+1:]
	case 1:
		i := slash + at(rest[slash:]+"x")
		if i < len(rest) {
			rest = rest[:i] + "%" + strings.ToUpper(string("0123456789abcdef"[rest[i]>>4])+string("0123456789abcdef"[rest[i]&15])) + rest[i+1:]
		}
	case 2:
		rest = rest[:slash] + "./" + rest[slash:]
	case 3:
		rest = rest[:slash] + "x/../" + rest[slash:]
	case 4:
		rest = rest[:slash] + "/" + rest[slash:]
	case 5:
		rest += "#x"
	case 6:
		rest += "?x=1"
	case 7:
		rest += "/"
	case 8:
		rest += ";x"
	case 9:
		rest = strings.ToUpper(rest)
	case 10:
		rest = rest[:slash] + "%2e%2e/" + rest[slash:]
	case 11:
		rest = strings.Replace(rest, "//", "//me@", 1)
	case 12:
		rest = strings.Replace(rest, "//host", "//host:80", 1)
	case 13:
		if scheme == "file" {
			rest += rapid.SampledFrom([]string{"::$DATA", ":x", "%3Ax", "%3ax"}).Draw(t, "stream")
		}
	default:
		rest = strings.Replace(rest, "//host", "//HOST.", 1)
	}
	return scheme + ":" + rest
}

// Another spelling of a URI either is not plain, or Readings returns for it at least one URI that Readings also returns
// for the original URI, apart from case. Otherwise the other spelling could bypass a rule that denies the URI.
func TestCheckResource_NoOtherSpellingIsPlain(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		uri := rapid.SampledFrom([]string{"file:///etc/passwd", "note://host/a/b", "config:app/x", "http://host/v1/x", "pg://host/orders"}).Draw(t, "uri")
		other := uri
		for range rapid.IntRange(1, 3).Draw(t, "times") {
			other = respell(t, other)
		}
		if locator.CheckResource(other) != nil {
			return
		}
		fold := func(of string) (out []string) {
			for _, text := range locator.Readings(of) {
				out = append(out, strings.ToLower(text))
			}
			return out
		}
		known := fold(uri)
		if !slices.ContainsFunc(fold(other), func(text string) bool { return slices.Contains(known, text) }) {
			t.Fatalf("%s is plain, and is read as %q, not as %s", other, fold(other), uri)
		}
	})
}

// FuzzCheckResource checks that net/url parses a plain URI without changing it, and that no part of the path can be
// removed or decoded.
func FuzzCheckResource(f *testing.F) {
	for _, tt := range resources {
		f.Add(tt.text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		readings := locator.Readings(text)
		if len(readings) > 128 || readings[0] != text {
			t.Fatalf("%q is read as %q", text, readings)
		}
		if locator.CheckResource(text) != nil {
			return
		}
		if err := locator.CheckTemplate(text); err != nil {
			t.Fatalf("%q is plain, and as a template it %v", text, err)
		}
		u, err := url.Parse(text)
		if err != nil {
			t.Skip() // net/url is stricter about this authority
		}
		if u.Scheme != strings.ToLower(u.Scheme) || !strings.HasPrefix(text, u.Scheme+":") || u.Fragment != "" {
			t.Fatalf("%q is read as %#v", text, u)
		}
		way := u.Path
		if u.Opaque != "" {
			way, _ = url.PathUnescape(u.Opaque)
			way = "/" + way
		}
		if clean := path.Clean(way); way != "" && clean != way && clean+"/" != way {
			t.Fatalf("%q has the path %q, and cleaned %q", text, way, clean)
		}
		if decodedAgain, err := url.PathUnescape(way); err == nil && decodedAgain != way {
			t.Fatalf("%q has the path %q, and decoded again %q", text, way, decodedAgain)
		}
	})
}
