package condition_test

import (
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/policy/internal/condition"
)

// TestEvaluate_LocatorFunctions checks that conditions can call the functions of package locator. The tests of package
// locator check the results in detail. Case P14.
func TestEvaluate_LocatorFunctions(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ text, args, want string }{
		{`path.within(args.path, "/srv")`, `{"path":"/srv/a/../b"}`, "true"},
		{`path.within(args.path, "/srv")`, `{"path":"/srv/../etc/passwd"}`, "false"},
		{`path.within(args.path, "/srv")`, `{"path":"/srv/%2e%2e/etc"}`, "path.within: the text contains a %"},
		{`!path.within(args.path, "/etc")`, `{"path":"..\\etc"}`, "path.within: the text contains a \\"},
		{`path.within(args.path, "/srv")`, `{"path":["/srv/a"]}`, "no such overload"},
		{`path.within(args.path, "/srv")`, `{}`, "no such key: path"},
		{`path.within(args.?path.orValue("/srv"), "/srv")`, `{}`, "true"},
		{`args.paths.all(path, path.within(path, "/srv") && path.ext(path) in [".txt", ".md"])`, `{"paths":["/srv/a.txt","/srv/b.md"]}`, "true"},
		{`args.paths.all(p, path.within(p, "/srv"))`, `{"paths":["/srv/a","/etc/b"]}`, "false"},
		{`path.base(args.file) == "report.csv"`, `{"file":"/x/../report.csv/"}`, "true"},
		{`path.base(args.file).endsWith(".csv")`, `{"file":"a/report.csv"}`, "true"},
		{`url.scheme(args.url) == "https" && url.host(args.url) == "api.example.com" && url.port(args.url) == 443`, `{"url":"https://API.example.com./x"}`, "true"},
		{`url.host(args.url) == "ok"`, `{"url":"https://ok@evil/"}`, "url.host: the text has a user"},
		{`url.host(args.url).endsWith(".example.com")`, `{"url":"https://a.example.com"}`, "true"},
		{`url.port(args.url) == 5432`, `{"url":"postgres://db/x"}`, "url.port: the URL has no port"},
		{`path.within(url.path(args.url), "/v1")`, `{"url":"https://ok/v1/x?y"}`, "true"},
		{`url.under(args.url, "https://api.example.com/v1")`, `{"url":"https://api.example.com/v1/x"}`, "true"},
		{`url.under(args.url, "https://api.example.com/v1")`, `{"url":"https://api.example.com@evil/v1"}`, "url.under: the text has a user"},
		{`ip.in(args.ip, "10.0.0.0/8")`, `{"ip":"::ffff:10.1.2.3"}`, "true"},
		{`!ip . in (url.host(args.url), '10.0.0.0/8') && args.note == "ip.in(x)"`, `{"url":"https://11.1.1.1/","note":"ip.in(x)"}`, "true"},
		{`args.note == r"\" && ip.in(args.ip, """::/0""") // ip.in(`, `{"ip":"::1","note":"\\"}`, "true"},
		{`ip.in(args.ip, "10.0.0.0/8")`, `{"ip":"10.1"}`, "ip.in: the text is not an IP"},
		{`args.to.all(x, email.domain(x) == "example.com")`, `{"to":["a@Example.com"]}`, "true"},
		{`email.domain(args.to) == "example.com"`, `{"to":"a@evil, b@example.com"}`, "email.domain: the text has more than one @"},
	} {
		held, err := holds(compile(t, tt.text), arguments(t, tt.args))
		got := answer(held, err)
		if !strings.Contains(got, tt.want) || held && err != nil {
			t.Errorf("%s for %s: %s; want %s", tt.text, tt.args, got, tt.want)
		}
	}
}

func answer(held bool, err error) string {
	switch {
	case err != nil:
		return err.Error()
	case held:
		return "true"
	}
	return "false"
}

// TestCompile_FailsForMisleadingTestsOfPathsAndURLs checks that string tests on parts of a path or URL are refused, and
// that the error suggests a safe function. Case P14.
func TestCompile_FailsForMisleadingTestsOfPathsAndURLs(t *testing.T) {
	t.Parallel()
	const (
		usePath = `use path.within(x, "/srv")`
		useURL  = `use url.under(x, "https://api.example.com/v1")`
		useHost = `endsWith(".example.com")`
		useMail = "email.domain(x)"
		useEnds = "write ^(?:…)$"
	)
	for _, tt := range []struct{ text, want string }{
		// The literal in the comparison shows what kind of string is tested.
		{`args.x.startsWith("/srv")`, usePath},
		{`args.x.startsWith("./a")`, usePath},
		{`args.x.startsWith("~/a")`, usePath},
		{`!args.x.contains("..")`, usePath},
		{`!args.x.contains("../")`, usePath},
		{`!args.x.startsWith("/etc")`, usePath},
		{`args.x.endsWith("/report.csv")`, usePath},
		{`"/srv/a".startsWith(args.path)`, usePath},
		{`args.x.startsWith("https://api.example.com")`, useURL},
		{`args.x.startsWith("http")`, useURL},
		{`args.x.contains("://example.com/")`, useURL},
		{`args.to.endsWith("@example.com")`, useMail},
		// The name of the argument shows what kind of string is tested.
		{`args.path.startsWith("a")`, usePath},
		{`args["file_paths"].exists(p, p.startsWith("a"))`, usePath},
		{`args.files[0].endsWith("x")`, usePath},
		{`args.?outputDir.orValue("").startsWith("a")`, usePath},
		{`(has(args.x) ? args.x : args.filename).startsWith("a")`, usePath},
		{`[args.cwd].all(q, q.contains("x"))`, usePath},
		{`args.directories.all(d, d.contains("x"))`, usePath},
		{`{"a": args.folder}.a.startsWith("a")`, usePath},
		{`args.path.startsWith(args.prefix)`, usePath},
		{`args.baseURL.contains("example")`, useURL},
		{`args.callback_url.endsWith("example.com")`, useURL},
		{`args.o.link.contains("example")`, useURL},
		{`url.path(args.x).startsWith("v1")`, useURL},
		{`url.host(args.x).endsWith("example.com")`, useHost},
		{`url.host(args.x).startsWith("api.")`, useHost},
		{`email.domain(args.x).contains("example")`, useHost},
		// An order comparison also tests the start of a string.
		{`args.path >= "/srv/" && args.path < "/srv0"`, usePath},
		{`args.x > "/srv/"`, usePath},
		{`"/srv/" <= args.x`, usePath},
		{`args.path < "a"`, usePath},
		{`args.urls.all(u, u >= "a")`, useURL},
		{`args.x >= "https://api.example.com/"`, useURL},
		{`url.host(args.x) >= "api."`, useHost},
		// Patterns must be anchored, and must not accept characters that change the meaning of a path or URL.
		{`args.x.matches("abc")`, useEnds},
		{`args.x.matches("^abc")`, useEnds},
		{`args.x.matches("abc$")`, useEnds},
		{`args.x.matches("^a|b$")`, useEnds},
		{`args.x.matches("^(a$|b)")`, useEnds},
		{`args.x.matches("(?m)^a$")`, useEnds},
		{`args.x.matches("(^a$)?")`, useEnds},
		{`args.x.matches("(^a$)*")`, useEnds},
		{`args.x.matches("")`, useEnds},
		{`args.x.matches("^/srv/")`, usePath},
		{`args.path.matches("srv")`, usePath},
		{`args.path.matches("^/srv/.*$")`, usePath},
		{`args.path.matches("^/srv/[^/]+$")`, usePath},
		{`args.path.matches("^/srv/[a-z./]*$")`, usePath},
		{`args.path.matches("^/srv/[a-z.]+$")`, usePath},
		{`args.path.matches("^/srv(/(\\.|x)*)*$")`, usePath},
		{`args.path.matches("^/srv/..$")`, usePath},
		{`args.x.matches("^https://[^/]+\\.example\\.com/$")`, useURL},
		{`args.url.matches("^https:\\/\\/api\\.example\\.com")`, useURL},
		{`url.host(args.x).matches("example")`, useHost},
	} {
		if _, err := condition.Compile(tt.text); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v; want %s", tt.text, err, tt.want)
		}
	}
	for _, text := range []string{
		`args.title.startsWith("Draft")`,
		`args.profile.startsWith("a")`,
		`args.date >= "2026-01-01" && args.date < "2027"`,
		`size(args.path) < 100`,
		`args.files > 3`,
		`args.mime.startsWith("image/")`,
		`args.text.contains("http")`,
		`!args.text.contains("://")`,
		`!args.name.contains("/")`,
		`args.text.contains("...")`,
		`args.text.startsWith("@here")`,
		`args.file_count.contains("x")`,
		`args.x.matches("^(a|b)$")`,
		`args.x.matches("^a$|^b$")`,
		`args.x.matches("^(a|b)+$")`,
		`args.x.matches("\\Aa.*\\z")`,
		`args.path.matches("^/tmp/[a-z]+$")`,
		`args.path.matches("^/tmp/([a-z0-9_-]+\\.)*[a-z0-9]+$")`,
		`args.path.matches("(?i)^/tmp/a\\.txt$")`,
		`args.url.matches("^https://([a-z0-9-]+\\.)+example\\.com/[a-z/]*$")`,
		`url.host(args.x).matches("^[a-z]+\\.example\\.com$")`,
	} {
		if _, err := condition.Compile(text); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// TestCompile_RequiresValidConstants checks that the second argument of a locator function must be a valid constant.
func TestCompile_RequiresValidConstants(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`path.within(args.path, args.root)`:                 "is not a constant; write a constant string",
		`["/a", "/b"].exists(r, path.within(args.path, r))`: "is not a constant",
		`path.within(args.path, "../a")`:                    `"../a" has .. segments`,
		`path.within(args.path, "")`:                        `"" is empty`,
		`url.under(args.url, "https://ok@evil")`:            "a user",
		`url.under(args.url, "https://ok/?q")`:              "a query",
		`url.under(args.url, "api.example.com")`:            "not an absolute URL",
		`ip.in(args.ip, "10.1.2.3")`:                        "CIDR",
		`ip.in(args.ip, "10.1.2.3/8")`:                      "write 10.0.0.0/8",
		`ip.in(args.ip)`:                                    "'ip.in'",
		`ip.at(args.ip)`:                                    "there is ip.in",
		`path.join(args.a)`:                                 "path.within, path.base and path.ext",
		`url.query(args.a) == ""`:                           "url.under",
		`email.user(args.a) == ""`:                          "email.domain",
		`path.within(7, "/srv")`:                            "no matching overload",
		`args.a.all(a, args.a.all(b, path.within(a, "/srv") && url.under(b, "https://x") && a == b && args.a.exists(c, c == a)))`: "may take too long",
	} {
		if _, err := condition.Compile(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %s", text, err, want)
		}
	}
}
