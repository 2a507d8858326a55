package httpclient

import (
	"errors"
	"net/http"
	"net/url"
	"strings"
	"testing"
)

// When the client connects, a configured host name may resolve to any of these addresses (SSRF). The test checks which
// of them are refused.
func TestCheckAddress(t *testing.T) {
	t.Parallel()
	const never, ifPrivate, always = "never", "only where the host may be private", "always"
	tests := []struct{ address, want string }{
		{"93.184.216.34:443", always},
		{"[2606:2800:220:1:248:1893:25c8:1946]:443", always},
		{"[64:ff9b::5db8:d822]:443", always}, // NAT64 of 93.184.216.34
		{"127.0.0.1:80", ifPrivate},
		{"127.9.9.9:80", ifPrivate},
		{"[::1]:80", ifPrivate},
		{"[::ffff:127.0.0.1]:80", ifPrivate},
		{"[::127.0.0.1]:80", ifPrivate},
		{"10.0.0.1:80", ifPrivate},
		{"172.16.0.1:80", ifPrivate},
		{"192.168.0.1:80", ifPrivate},
		{"[fd00:ec2::254]:80", ifPrivate},
		{"[fec0::1]:80", ifPrivate},
		{"100.100.100.200:80", ifPrivate}, // a cloud's metadata service, in RFC 6598
		{"100.64.0.1:80", ifPrivate},
		{"192.0.0.1:80", ifPrivate},
		{"198.18.0.1:80", ifPrivate},
		{"0.1.2.3:80", ifPrivate},
		{"240.0.0.1:80", ifPrivate},
		{"255.255.255.255:80", ifPrivate},
		{"[64:ff9b::7f00:1]:80", ifPrivate}, // NAT64 of 127.0.0.1
		{"[64:ff9b::0a00:1]:80", ifPrivate}, // NAT64 of 10.0.0.1
		{"[64:ff9b:1::1]:80", ifPrivate},    // NAT64 for local use
		{"[2002:7f00:1::]:80", ifPrivate},   // 6to4 of 127.0.0.1
		{"[2002:5db8:d822::]:80", always},   // 6to4 of 93.184.216.34
		{"169.254.169.254:80", never},       // the metadata service of most clouds
		{"[::ffff:169.254.169.254]:80", never},
		{"[64:ff9b::a9fe:a9fe]:80", never},
		{"[2002:a9fe:a9fe::]:80", never},
		{"[fe80::1]:80", never},
		{"[fe80::1%eth0]:80", never},
		{"[fec0::1%eth0]:80", ifPrivate},
		{"0.0.0.0:80", never},
		{"[::]:80", never},
		{"224.0.0.1:80", never},
		{"[ff02::1]:80", never},
		{"[ff01::1]:80", never},
		{"nonsense", never},
		{"", never},
	}
	for _, tt := range tests {
		t.Run(tt.address, func(t *testing.T) {
			t.Parallel()
			got := never
			if checkAddress("host", tt.address, true) == nil {
				got = ifPrivate
			}
			if checkAddress("host", tt.address, false) == nil {
				if got == never {
					t.Error("refused to a host that may be private, and let through to one that may not")
				}
				got = always
			}
			if got != tt.want {
				t.Errorf("let through %s, want %s", got, tt.want)
			}
		})
	}
}

// A proxy is used only for connections that are encrypted end to end. It is never used for an address that configured
// hosts must not resolve to.
func TestNew_UsesProxyOnlyForHTTPS(t *testing.T) {
	t.Parallel()
	proxy, err := url.Parse("http://user:secret@127.0.0.1:3128")
	if err != nil {
		t.Fatal(err)
	}
	for target, want := range map[string]bool{
		"https://mcp.example.com/mcp": true, "https://10.0.0.7:8443/mcp": true, "https://127.0.0.1/mcp": true,
		"http://mcp.example.com/mcp": false, "https://169.254.169.254/mcp": false, "https://[fe80::1]/mcp": false, "https://0.0.0.0/mcp": false,
		"https://[::ffff:169.254.169.254]/mcp": false, "https://224.0.0.1/mcp": false,
	} {
		u, err := url.Parse(target)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := New(u, Options{Proxy: proxy}); (err == nil) != want {
			t.Errorf("%s: %v", target, err)
		}
	}
}

// The rules for a server's address also apply to a proxy's address.
func TestNew_ProxyAtALinkLocalAddressIsNotDialled(t *testing.T) {
	t.Parallel()
	for _, at := range []string{"http://169.254.169.254:3128", "http://[fe80::1]:3128", "https://0.0.0.0:3128"} {
		proxy, err := url.Parse(at)
		if err != nil {
			t.Fatal(err)
		}
		target := &url.URL{Scheme: "https", Host: "mcp.example.com", Path: "/mcp"}
		w, err := New(target, Options{Proxy: proxy})
		if err != nil {
			t.Fatal(err)
		}
		head, err := NewHead(&http.Request{Method: http.MethodPost, URL: target, Header: make(http.Header)})
		if err != nil {
			t.Fatal(err)
		}
		if resp, err := w.Send(t.Context(), head, nil, []byte("{}")); !errors.Is(err, ErrNeverSent) || !strings.Contains(err.Error(), "at which no server can be") {
			t.Errorf("%s: %v, %v", at, resp, err)
		}
	}
}

func TestMayBePrivate(t *testing.T) {
	t.Parallel()
	for host, want := range map[string]bool{
		"localhost": true, "policy": true, "db.internal": true, "printer.LOCAL": true, "nas.lan.": true, "x.home.arpa": true,
		"127.0.0.1": true, "::1": true, "10.1.2.3": true, "169.254.169.254": true,
		"example.com": false, "example.com.": false, "internal.example.com": false, "evillocal.com": false, "localhost.evil.example": false,
		"0x7f.0.0.1": false, "127.1.evil.example": false,
	} {
		if got := mayBePrivate(host); got != want {
			t.Errorf("%s: %v, want %v", host, got, want)
		}
	}
}
