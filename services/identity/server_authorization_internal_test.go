package identity

import (
	"errors"
	"net/http"
	"net/url"
	"testing"
)

// The metadata of a server on the internet must not take requests to this machine or to a cloud's metadata service.
func TestServerAuthorization_RefusesAddressesInsideTheNetwork(t *testing.T) {
	t.Parallel()
	for address, wants := range map[string][2]error{ // for a server elsewhere, and for a server on loopback
		"203.0.113.7:443":        {nil, nil},
		"10.1.2.3:443":           {nil, nil}, // a company's own authorization server
		"127.0.0.1:443":          {errServerUnusable, nil},
		"[::1]:443":              {errServerUnusable, nil},
		"[::ffff:127.0.0.1]:443": {errServerUnusable, nil},
		"169.254.169.254:80":     {errServerUnusable, errServerUnusable},
		"[fe80::1]:80":           {errServerUnusable, errServerUnusable},
		"0.0.0.0:80":             {errServerUnusable, errServerUnusable},
		"224.0.0.1:80":           {errServerUnusable, errServerUnusable},
		"no address":             {errServerUnusable, errServerUnusable},
	} {
		for i, mayBeLoopback := range []bool{false, true} {
			if err := checkDial(address, mayBeLoopback); !errors.Is(err, wants[i]) {
				t.Errorf("%s, loopback %v: %v", address, mayBeLoopback, err)
			}
		}
	}
	elsewhere, here := OAuthServer{URL: "https://mcp.example.com/mcp"}, OAuthServer{URL: "http://127.0.0.1:8080/mcp"}
	for text, isOK := range map[string][2]bool{
		"https://as.example.com": {true, true}, "http://as.example.com": {false, false}, "http://127.0.0.1:1/token": {false, true},
		"https://localhost/token": {false, true}, "file:///etc/passwd": {false, false}, "": {false, false},
	} {
		for i, of := range []OAuthServer{elsewhere, here} {
			if err := of.checkURL(text); (err == nil) != isOK[i] {
				t.Errorf("%s named by %s: %v", text, of.URL, err)
			}
		}
	}
}

// A configured proxy is used for https, but not for this machine. A server on the internet still can't take requests to
// loopback addresses.
func TestOAuthServer_ProxyIsNotUsedForThisMachine(t *testing.T) {
	t.Parallel()
	of := OAuthServer{URL: "https://mcp.example.com/mcp", Proxy: "http://127.0.0.1:3128"}
	for text, want := range map[string]bool{
		"https://mcp.example.com/mcp": true, "https://as.example.com/token": true, "https://10.1.2.3/token": true,
		"http://127.0.0.1:1/token": false, "https://localhost/token": false, "https://[::1]/token": false,
	} {
		at, err := url.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		if proxy, err := of.proxyFor(&http.Request{URL: at}); err != nil || (proxy != nil) != want {
			t.Errorf("%s: the proxy is %v, %v", text, proxy, err)
		}
	}
	client, err := of.httpClient()
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://127.0.0.1:1/token", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Do(req)
	if err == nil {
		_ = resp.Body.Close()
	}
	if !errors.Is(err, errServerUnusable) {
		t.Errorf("the error is %v", err)
	}
}
