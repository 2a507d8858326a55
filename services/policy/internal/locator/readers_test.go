package locator_test

import (
	"bytes"
	"math/rand/v2"
	"net/url"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"

	"github.com/sluice-mesh/sluice/services/e2e/npmtest"
	"github.com/sluice-mesh/sluice/services/policy/internal/locator"
)

// pieces contains parts of URLs, including parts that well-known programs interpret differently.
var pieces = [][]string{
	{"https", "http", "HTTP", "ftp", "wss", "s3", "file", "javascript", "h\tttp", ""},
	{"://", "://", "://", ":", ":/", ":///", ":\\\\", ":/\\", "//", ":// "},
	{"", "", "", "", "@", "ok@", "u:p@", "ok%40", "ok\\@", "ok#@", "ok?@"},
	{
		"ok", "OK.example", "a.example.", "a..b", "127.0.0.1", "127.1", "0x7f.1", "2130706433", "0177.0.0.1", "1.2.3.4.", "a.08", "a.0x", "[::1]", "[::1%eth0]", "[::FFFF:1.2.3.4]", "[0:0::1]",
		"bücher.example", "xn--bcher-kva.example", "xn--a", "xn--ls8h.example", "faß.de", "ok。example", "ok．example", "ｅx", "☃.net", "a_b", "a%62", "a%00", "-a-", "a,b", "", ".", "①", "a\u00adb", "\u212a", "א.example", "a\u200cb", "xn--strae-oqa.de", "r3---sn", "*.a",
	},
	{"", "", "", ":443", ":80", ":", ":0", ":65536", ":0443", ":8080", ":a", ":-1", ":1:2", ":99999999999999999999"},
	{"", "/", "/a", "/a/b/", "//a", "/a//b", "/.", "/a/..", "/../..", "/a/../b", "/%2e%2e/a", "/.%2e", "/a%2fb", "/%61", "/%c3%a9", "/%C0%AE", "/a\\b", "/a b", "/a|b", "/é", "/..;a/b", "/\x00", "/a\n", "/%", "/a;b", "/[", "/\"", "/a^"},
	{"", "", "?q=1", "?a@b", "#f", "#@b", "? ", "?\\", "?é", "?%", "#/../x", "?'|{}"},
}

// TestParseURL_AgreesWithOtherReaders checks that Node, which implements the WHATWG standard, and the standard library,
// which implements RFC 3986, parse every URL that ParseURL accepts to the same parts. Case P14.
func TestParseURL_AgreesWithOtherReaders(t *testing.T) {
	t.Parallel()
	texts := make([]string, 0, 30_000)
	for _, tt := range urls {
		texts = append(texts, tt.text)
	}
	random := rand.New(rand.NewPCG(1, 2))
	for len(texts) < cap(texts) {
		texts = append(texts, madeURL(random))
	}
	read := 0
	for i, theirs := range whatwg(t, texts) {
		u, err := locator.ParseURL(texts[i])
		if err != nil {
			continue
		}
		read++
		if ours := (reading{u.Scheme, bracketed(u.Host), portText(u), u.Path}); !ours.same(theirs) {
			t.Errorf("%q is %v here, and %v by the WHATWG standard", texts[i], ours, theirs)
		}
		checkRFC3986(t, texts[i], u)
	}
	if read < len(texts)/50 {
		t.Errorf("%d of %d texts are URLs: the test shows little", read, len(texts))
	}
}

func madeURL(random *rand.Rand) string {
	var text strings.Builder
	odd, odder := random.IntN(len(pieces)), random.IntN(len(pieces))
	for i, some := range pieces {
		from := min(3, len(some))
		if i == odd || i == odder {
			from = len(some)
		}
		text.WriteString(some[random.IntN(from)])
	}
	made := text.String()
	if random.IntN(4) == 0 && made != "" { // an extra character at a random position
		at := random.IntN(len(made) + 1)
		made = strings.ToValidUTF8(made[:at]+string([]rune("\t\n /\\@:.%#?[]\u3002\u00a0\u2044é0-")[random.IntN(19)])+made[at:], "")
	}
	return made
}

// A reading contains the parts of a URL as one parser interprets it. The zero reading means that the parser refuses the
// URL.
type reading struct{ scheme, host, port, path string }

// same reports whether two readings are equal. It treats a missing path as "/".
func (r reading) same(o reading) bool {
	if o.path == "" && o.scheme != "" {
		o.path = "/"
	}
	decoded, err := url.PathUnescape(o.path)
	own, ownErr := url.PathUnescape(r.path)
	return r.scheme == o.scheme && r.host == o.host && r.port == o.port && err == nil && ownErr == nil && own == decoded &&
		strings.EqualFold(r.path, o.path)
}

func bracketed(host string) string {
	if strings.Contains(host, ":") {
		return "[" + host + "]"
	}
	return host
}

// portText returns the port in the form in which the WHATWG standard serializes it. It is empty for the default port of
// the scheme.
func portText(u locator.URL) string {
	own := map[string]int{"http": 80, "https": 443, "ws": 80, "wss": 443, "ftp": 21}
	if u.Port == own[u.Scheme] {
		return ""
	}
	return strconv.Itoa(u.Port)
}

// whatwg returns the readings of the strings by Node, which implements the WHATWG standard. It removes the final dots
// from the hosts.
func whatwg(t *testing.T, texts []string) []reading {
	t.Helper()
	const script = `
const texts = JSON.parse(require("fs").readFileSync(0, "utf8"));
console.log(JSON.stringify(texts.map((text) => {
  try {
    const u = new URL(text);
    if (u.username || u.password) return ["user", "", "", ""];
    return [u.protocol.slice(0, -1), u.hostname.replace(/[.]$/, ""), u.port, u.pathname];
  } catch { return ["", "", "", ""]; }
})));`
	in, err := json.Marshal(texts)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), npmtest.Node(t), "-e", script)
	cmd.Stdin = bytes.NewReader(in)
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var answers [][4]string
	if err := json.Unmarshal(out, &answers); err != nil || len(answers) != len(texts) {
		t.Fatalf("%d answers, %v", len(answers), err)
	}
	readings := make([]reading, 0, len(answers))
	for _, a := range answers {
		readings = append(readings, reading{a[0], a[1], a[2], a[3]})
	}
	return readings
}

// checkRFC3986 compares a URL with the result of the standard library. The comparison takes into account that the
// standard library does not change the case of names.
func checkRFC3986(t interface {
	Helper()
	Errorf(format string, args ...any)
}, text string, u locator.URL,
) {
	t.Helper()
	theirs, err := url.Parse(text)
	if err != nil {
		t.Errorf("%q is read, and not by RFC 3986: %v", text, err)
		return
	}
	host := strings.TrimSuffix(strings.ToLower(theirs.Hostname()), ".")
	ascii := !strings.ContainsFunc(host, func(r rune) bool { return r > 0x7f })
	path := theirs.EscapedPath()
	if path == "" {
		path = "/"
	}
	if theirs.Scheme != u.Scheme || theirs.User != nil || ascii && host != u.Host || !strings.EqualFold(path, u.Path) ||
		theirs.Port() != "" && theirs.Port() != strconv.Itoa(u.Port) {
		t.Errorf("%q is %v here, and %#v by RFC 3986", text, u, theirs)
	}
}

// FuzzP14URL checks that the standard library parses a URL into the same parts, that a URL built from these parts
// equals the original URL, and that the URL is under itself.
func FuzzP14URL(f *testing.F) {
	for _, tt := range urls {
		f.Add(tt.text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		u, err := locator.ParseURL(text)
		if err != nil {
			if u != (locator.URL{}) {
				t.Fatalf("%q: %v, and %v", text, u, err)
			}
			return
		}
		checkRFC3986(t, text, u)
		second := u.Scheme + "://" + bracketed(u.Host)
		if u.Port != 0 {
			second += ":" + strconv.Itoa(u.Port)
		}
		base, err := locator.ParseBase(second + u.Path)
		if len(text) < locator.MaxBytes/4 && (err != nil || !u.Under(base) || base.Path != u.Path || base.Host != u.Host) {
			t.Fatalf("%q is %v; written again %v, %v", text, u, base, err)
		}
		if in, err := within(u.Path, "/"); err == nil && !in {
			t.Fatalf("%q: the path %q is not within /", text, u.Path)
		}
	})
}

// FuzzP14EmailDomain checks that an accepted address contains exactly one @, and that its domain can be the host of a
// URL.
func FuzzP14EmailDomain(f *testing.F) {
	for _, seed := range []string{"a@b.example", `"a@b"@c`, "a@b,c@d", "a%b@c", "a@[1.2.3.4]", "a@xn--bcher-kva.example"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		domain, err := locator.EmailDomain(text)
		if err != nil {
			return
		}
		if !strings.EqualFold(text[strings.IndexByte(text, '@')+1:], domain) || strings.Count(text, "@") != 1 || strings.ContainsAny(text, " \t\r\n<>,;:\"()[]\\%!") {
			t.Fatalf("%q has the domain %q", text, domain)
		}
		if u, err := locator.ParseURL("https://" + domain); err != nil || u.Host != domain {
			t.Fatalf("%q: the domain %q is no host: %v, %v", text, domain, u, err)
		}
	})
}
