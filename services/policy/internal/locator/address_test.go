package locator_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/policy/internal/locator"
)

// TestParsePrefix_ContainsAddresses checks which addresses a network contains, and which strings are errors. Case P14.
func TestParsePrefix_ContainsAddresses(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ text, cidr, want string }{
		{"10.1.2.3", "10.0.0.0/8", "true"},
		{"11.1.2.3", "10.0.0.0/8", "false"},
		{"::ffff:10.1.2.3", "10.0.0.0/8", "true"},
		{"::ffff:a01:203", "10.0.0.0/8", "true"},
		{"::1", "10.0.0.0/8", "false"},
		{"fd00::1", "fd00::/8", "true"},
		{"FD00:0::1", "fd00::/8", "true"},
		{"10.1.2.3", "10.1.2.3/32", "true"},
		{"fe80::1%eth0", "fe80::/10", "a zone"},
		{"::ffff:10.1.2.3%x", "10.0.0.0/8", "a zone"},
		{"10.1.2", "10.0.0.0/8", "usual form"},
		{"010.1.2.3", "10.0.0.0/8", "usual form"},
		{"0x0a.1.2.3", "10.0.0.0/8", "usual form"},
		{"167838211", "10.0.0.0/8", "usual form"},
		{"10.1.2.3 ", "10.0.0.0/8", "usual form"},
		{"[::1]", "::/0", "usual form"},
		{"10.1.2.3:80", "10.0.0.0/8", "usual form"},
		{"", "10.0.0.0/8", "usual form"},
		{"10.1.2.3", "10.1.2.3/8", "write 10.0.0.0/8, or 10.1.2.3/32"},
		{"10.1.2.3", "10.1.2.3", "CIDR"},
		{"10.1.2.3", "::ffff:10.0.0.0/104", "write it as IPv4"},
		{"fe80::1", "fe80::1%eth0/10", "CIDR"},
	} {
		prefix, err := locator.ParsePrefix(tt.cidr)
		var address netip.Addr
		if err == nil {
			address, err = locator.ParseIP(tt.text)
		}
		if got := answer(err == nil && prefix.Contains(address), err); !strings.Contains(got, tt.want) {
			t.Errorf("%q in %q: %s; want %s", tt.text, tt.cidr, got, tt.want)
		}
	}
}

func TestEmailDomain(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ text, want string }{
		{"ana@Example.COM", "example.com"},
		{"ana.b+x@mail.example.com", "mail.example.com"},
		{"a@xn--bcher-kva.example", "xn--bcher-kva.example"},
		{"", "is empty"},
		{"ana", "no @"},
		{"ana@", "plain name"},
		{"@example.com", "single plain address"},
		{"a@evil@example.com", "more than one @"},
		{"<a@example.com>", "single plain address"},
		{"Ana <a@example.com>", "single plain address"},
		{`"a b"@example.com`, "single plain address"},
		{`"a@evil"@example.com`, "more than one @"},
		{"a(comment)@example.com", "single plain address"},
		{"a@example.com,b@evil", "more than one @"},
		{"a,b@example.com", "single plain address"},
		{"a b@example.com", "single plain address"},
		{"a%evil.com@example.com", "single plain address"},
		{"evil!a@example.com", "single plain address"},
		{"@evil:a@example.com", "more than one @"},
		{".a@example.com", "single plain address"},
		{"a..b@example.com", "single plain address"},
		{"a@example.com.", "plain name"},
		{"a@-_x.com", "plain name"},
		{"a@[127.0.0.1]", "plain name"},
		{"a@127.0.0.1", "IP address"},
		{"a@example.com\n", "unprintable"},
		{"a@bücher.example", "plain name"},
		{"a@xn--a", "convert differently"},
		{"ä@example.com", "single plain address"},
		{strings.Repeat("a", 65) + "@example.com", "more than 64"},
		{"a@" + strings.Repeat("a.", 127) + "com", "longer than 254"},
	} {
		domain, err := locator.EmailDomain(tt.text)
		if err != nil {
			domain = err.Error()
		}
		if !strings.Contains(domain, tt.want) || err == nil && domain != tt.want {
			t.Errorf("%q: %s; want %s", tt.text, domain, tt.want)
		}
	}
}
