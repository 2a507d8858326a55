package locator_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/policy/internal/locator"
)

// urls contains strings, each with the expected URL or a part of the expected error.
var urls = []struct{ text, want string }{
	{"https://api.example.com", "https api.example.com 443 /"},
	{"https://api.example.com/", "https api.example.com 443 /"},
	{"HTTPS://API.Example.COM:443/A/b", "https api.example.com 443 /A/b"},
	{"http://example.com:8080/a%20b/%c3%a9?q=[x]#f", "http example.com 8080 /a%20b/%C3%A9"},
	{"wss://example.com?x=1", "wss example.com 443 /"},
	{"https://ok/@evil", "https ok 443 /@evil"},
	{"https://ok#@evil/", "https ok 443 /"},
	{"https://ok?@evil/", "https ok 443 /"},
	{"https://example.com./", "https example.com 443 /"},
	{"https://bücher.example/", "https xn--bcher-kva.example 443 /"},
	{"https://xn--bcher-kva.example/", "https xn--bcher-kva.example 443 /"},
	{"https://r3---sn-x.example/", "https r3---sn-x.example 443 /"},
	{"https://a_b.example/", "https a_b.example 443 /"},
	{"http://127.0.0.1/", "http 127.0.0.1 80 /"},
	{"http://[::1]:8080/x", "http ::1 8080 /x"},
	{"http://[2001:db8::1]", "http 2001:db8::1 80 /"},
	{"postgres://db.example/x", "postgres db.example 0 /x"},
	{"s3://bucket:9/x", "s3 bucket 9 /x"},

	{"", "is empty"},
	{"example.com/x", "not an absolute URL"},
	{"/x", "not an absolute URL"},
	{"//example.com/x", "not an absolute URL"},
	{"1https://x", "not an absolute URL"},
	{"javascript:alert(1)", "two slashes"},
	{"data:text/html,x", "two slashes"},
	{"https:example.com", "two slashes"},
	{"https:/example.com", "two slashes"},
	{"https:///example.com", "two slashes"},
	{"https:////example.com", "two slashes"},
	{`https:\\example.com`, `contains a \`},
	{`https://ok\@evil`, `contains a \`},
	{`https://ok/\evil`, `contains a \`},
	{"https://ok@evil/", "a user before"},
	{"https://api.example.com@evil/", "a user before"},
	{"https://@evil/", "a user before"},
	{"https://:@evil/", "a user before"},
	{"https://ok:443@evil/", "a user before"},
	{"https://", "plain name"},
	{"https://:443/", "plain name"},
	{"https://?x", "plain name"},
	{"https://a..b/", "plain name"},
	{"https://.a/", "plain name"},
	{"https://a../", "plain name"},
	{"https://./", "plain name"},
	{"https://a,b/", "plain name"},
	{"https://a*b/", "plain name"},
	{"https://%65xample.com/", "plain name"},
	{"https://a%00b/", "plain name"},
	{"https://" + strings.Repeat("a", 64) + "/", "plain name"},
	{"https://" + strings.Repeat("a.", 127) + "a/", "plain name"},
	{"http://127.1/", "take for an IP address"},
	{"http://2130706433/", "take for an IP address"},
	{"http://0x7f.1/", "take for an IP address"},
	{"http://0x7F000001/", "take for an IP address"},
	{"http://0177.0.0.1/", "take for an IP address"},
	{"http://127.0.0.1./", "take for an IP address"},
	{"http://127.0.0.256/", "take for an IP address"},
	{"http://a.1/", "take for an IP address"},
	{"http://a.0x/", "take for an IP address"},
	{"http://[::1%25eth0]/", "take for an IP address"},
	{"http://[fe80::1%eth0]/", "take for an IP address"},
	{"http://[::FFFF]/", "take for an IP address"},
	{"http://[0:0:0:0:0:0:0:1]/", "take for an IP address"},
	{"http://[::ffff:127.0.0.1]/", "take for an IP address"},
	{"http://[::127.0.0.1]/", "take for an IP address"},
	{"http://[127.0.0.1]/", "take for an IP address"},
	{"http://[v1.x]/", "take for an IP address"},
	{"http://[::1/", "take for an IP address"},
	{"http://::1/", "plain name"},
	{"http://[::1]x/", "take for an IP address"},
	{"https://faß.example/", "convert differently"},
	{"https://BÜCHER.example/", "convert differently"},
	{"https://ok。example/", "convert differently"},
	{"https://ok．example/", "convert differently"},
	{"https://ｅxample.com/", "convert differently"},
	{"https://example.c\u212am/", "convert differently"},
	{"https://xn--a/", "convert differently"},
	{"https://xn--example-/", "convert differently"},
	{"https://xn--BCHER-KVA.example/", "https xn--bcher-kva.example 443 /"},
	{"https://①②⑦.0.0.1/", "take for an IP address"},
	{"https://a\u200db.example/", "unprintable"},
	{"https://ok/\t", "unprintable"},
	{"ht\ntps://ok/", "unprintable"},
	{" https://ok/", "not an absolute URL"},
	{"https://ok/ ", "percent-encoded"},
	{"https://o k/", "plain name"},
	{"https://ok:/", "a port"},
	{"https://ok:0/", "a port"},
	{"https://ok:65536/", "a port"},
	{"https://ok:0443/", "a port"},
	{"https://ok:+443/", "a port"},
	{"https://ok:44 3/", "a port"},
	{"https://ok:443:443/", "plain name"},
	{"https://ok:https/", "a port"},
	{"file:///etc/passwd", "a file URL"},
	{"file://localhost/etc/passwd", "a file URL"},
	{"postgres://DB.example/x", "upper case"},
	{"postgres://bücher.example/x", "convert differently"},
	{"https://ok/a/../b", "with . or .."},
	{"https://ok/..", "with . or .."},
	{"https://ok/./b", "with . or .."},
	{"https://ok/a/..;x=1/b", "with . or .."},
	{"https://ok/a/%2e%2e/b", "some readers decode"},
	{"https://ok/a/.%2E/b", "some readers decode"},
	{"https://ok/a%2fb", "some readers decode"},
	{"https://ok/a%5cb", "some readers decode"},
	{"https://ok/%61dmin", "some readers decode"},
	{"https://ok/%252e%252e", "some readers decode"},
	{"https://ok/%00", "some readers decode"},
	{"https://ok/%0d%0a", "some readers decode"},
	{"https://ok/%c0%ae%c0%ae/b", "some readers decode"},
	{"https://ok/%ef%bc%8fb", "take for a slash"},
	{"https://ok/%e2%80%a5/b", "take for a slash or a dot"},
	{"https://ok/%zz", "two hex digits"},
	{"https://ok/?%", "two hex digits"},
	{"https://ok//b", "an empty segment"},
	{"https://ok/a//", "an empty segment"},
	{"https://ok/a|b", "percent-encoded"},
	{"https://ok/[a]", "percent-encoded"},
	{"https://ok/é", "percent-encoded"},
	{"https://ok/?é", "percent-encoded"},
	{"https://ok/" + strings.Repeat("a", locator.MaxBytes), "longer than"},
}

// TestParseURL checks the parts of URLs. It also checks that misleading URLs are errors. Case P14.
func TestParseURL(t *testing.T) {
	t.Parallel()
	for _, tt := range urls {
		u, err := locator.ParseURL(tt.text)
		got := fmt.Sprintf("%s %s %d %s", u.Scheme, u.Host, u.Port, u.Path)
		if err != nil {
			if got = err.Error(); strings.HasPrefix(tt.want, u.Scheme+" ") && u.Scheme != "" {
				t.Errorf("%q: %v", tt.text, err)
			}
		}
		if !strings.Contains(got, tt.want) {
			t.Errorf("%q: %s; want %s", tt.text, got, tt.want)
		}
	}
}

func TestURL_Under(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ text, base, want string }{
		{"https://api.example.com/v1/x", "https://api.example.com/v1", "true"},
		{"https://API.example.com.:443/v1", "https://api.example.com/v1/", "true"},
		{"https://api.example.com/v1/?q", "https://api.example.com/v1/", "true"},
		{"https://api.example.com/%c3%a9/x", "https://api.example.com/%C3%A9", "true"},
		{"https://api.example.com", "https://api.example.com/", "true"},
		{"https://api.example.com/v10", "https://api.example.com/v1", "false"},
		{"https://api.example.com/V1", "https://api.example.com/v1", "false"},
		{"http://api.example.com/v1", "https://api.example.com/v1", "false"},
		{"https://api.example.com:8443/v1", "https://api.example.com/v1", "false"},
		{"https://api.example.com.evil/v1", "https://api.example.com/v1", "false"},
		{"https://api.example.com@evil/v1", "https://api.example.com/v1", "a user"},
		{"https://api.example.com/v1/../admin", "https://api.example.com/v1", "with . or .."},
		{"https://ok/", "https://ok/?x", "a query or a fragment"},
		{"https://ok/", "https://ok/#", "a query or a fragment"},
	} {
		if got := answer(under(tt.text, tt.base)); !strings.Contains(got, tt.want) {
			t.Errorf("%q under %q: %s; want %s", tt.text, tt.base, got, tt.want)
		}
	}
}

func under(text, base string) (bool, error) {
	b, err := locator.ParseBase(base)
	if err != nil {
		return false, err
	}
	u, err := locator.ParseURL(text)
	if err != nil {
		return false, err
	}
	return u.Under(b), nil
}
