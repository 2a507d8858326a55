package tokenhttp_test

import (
	"crypto/x509"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/sluice-mesh/sluice/services/sluice/internal/tokenhttp"
)

type tokenCounter struct {
	*httptest.Server
	n atomic.Int64
}

func newTokenCounter(t *testing.T) *tokenCounter {
	t.Helper()
	l := new(tokenCounter)
	l.Server = httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "" {
			l.n.Add(1)
		}
	}))
	t.Cleanup(l.Close)
	return l
}

// send sends a POST request with a token, as the commands do.
func send(t *testing.T, client *http.Client, url string) (*http.Response, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer secret")
	return client.Do(req)
}

// Without TLS, the client sends the token only to real loopback addresses, and not to a URL that only looks like one.
// The proxy in the environment represents an attacker on the network, who can read every other request without TLS.
func TestNew_SendsTheTokenWithoutTLSOnlyToLoopback(t *testing.T) {
	proxy := newTokenCounter(t)
	for _, name := range []string{"HTTP_PROXY", "http_proxy", "ALL_PROXY"} {
		t.Setenv(name, proxy.URL)
	}
	for _, name := range []string{"NO_PROXY", "no_proxy"} {
		t.Setenv(name, "")
	}
	client := tokenhttp.New(nil, "")
	for _, url := range []string{
		"http://localhost.evil.example/mcp", "http://127.0.0.1.nip.io/mcp", "http://evil.example:7777/mcp", "http://2130706433/mcp",
		"http://0177.0.0.1/mcp", "http://0x7f000001/mcp", "http://127.1/mcp", "http://0.0.0.0/mcp", "http://[::]/mcp",
		"http://[::ffff:192.0.2.1]/mcp", "http://127.0.0.1@evil.example/mcp", "http://user:password@127.0.0.1:1/mcp",
		"http://localhost./mcp", "ftp://127.0.0.1/mcp", "http://192.0.2.1/mcp", "HTTP://evil.example/mcp",
	} {
		resp, err := send(t, client, url)
		if err == nil {
			_ = resp.Body.Close()
		}
		if refused, ok := errors.AsType[*tokenhttp.RefusedError](err); !ok || !strings.Contains(refused.Error(), "the token is not sent") || strings.Contains(refused.Error(), "password@") {
			t.Errorf("%s: %v, want a refusal", url, err)
		}
	}
	if n := proxy.n.Load(); n != 0 {
		t.Errorf("the token was sent %d times", n)
	}
}

func TestNew_UsesNoProxyForLoopback(t *testing.T) {
	t.Setenv("HTTP_PROXY", "http://127.0.0.1:1")
	mesh := newTokenCounter(t)
	port := mesh.URL[strings.LastIndex(mesh.URL, ":"):]
	for i, host := range []string{"127.0.0.1", "localhost", "[::ffff:127.0.0.1]"} {
		resp, err := send(t, tokenhttp.New(nil, ""), "http://"+host+port)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if n := mesh.n.Load(); n != int64(i+1) {
			t.Errorf("%s: the token arrived %d times, want %d", host, n, i+1)
		}
	}
}

func TestNew_FollowsNoRedirect(t *testing.T) {
	t.Parallel()
	elsewhere := newTokenCounter(t)
	for _, status := range []int{301, 302, 303, 307, 308} {
		for _, target := range []string{elsewhere.URL + "/mcp?key=hidden", "https://user:hidden@evil.example/x#hidden", "//" + strings.TrimPrefix(elsewhere.URL, "http://"), "/elsewhere", ""} {
			handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path != "/mcp" {
					elsewhere.n.Add(1)
				}
				if target != "" {
					w.Header().Set("Location", target)
				}
				w.WriteHeader(status)
			})
			for _, mesh := range []*httptest.Server{httptest.NewServer(handler), httptest.NewTLSServer(handler)} {
				roots := x509.NewCertPool()
				if cert := mesh.Certificate(); cert != nil {
					roots.AddCert(cert)
				}
				resp, err := send(t, tokenhttp.New(roots, ""), mesh.URL+"/mcp")
				if err == nil {
					_ = resp.Body.Close()
				}
				refused, ok := errors.AsType[*tokenhttp.RefusedError](err)
				if !ok || !strings.Contains(refused.Error(), "no redirect is followed") || strings.Contains(refused.Error(), "hidden") {
					t.Errorf("%d to %q: %v, want a refusal", status, target, err)
				} else if strings.Contains(target, "evil") && !strings.Contains(refused.Error(), `"https://evil.example/x"`) {
					t.Errorf("%d to %q: %v does not name the target", status, target, refused)
				}
				mesh.Close()
			}
		}
	}
	if n := elsewhere.n.Load(); n != 0 {
		t.Errorf("%d redirects were followed", n)
	}
}

// Without TLS, the client sends the token only to the named host. This host does not exist, so the request fails with a
// network error, but the client does not refuse to send it.
func TestNew_SendsCleartextOnlyToTheNamedHost(t *testing.T) {
	proxy := newTokenCounter(t)
	t.Setenv("HTTP_PROXY", proxy.URL)
	for named, hosts := range map[string]map[string]bool{
		"gateway.invalid": {"gateway.invalid": false, "GATEWAY.invalid": true, "gateway.invalid.evil.example": true, "evil.example": true, "x@gateway.invalid": true},
		"":                {"gateway.invalid": true},
		"evil":            {"evil.example": true},
	} {
		for host, want := range hosts {
			resp, err := send(t, tokenhttp.New(nil, named), "http://"+host+":1/mcp")
			if err == nil {
				_ = resp.Body.Close()
				t.Errorf("%s, with %q named: the request was sent", host, named)
			}
			if _, refused := errors.AsType[*tokenhttp.RefusedError](err); refused != want {
				t.Errorf("%s, with %q named: %v, want a refusal: %t", host, named, err, want)
			}
		}
	}
	if n := proxy.n.Load(); n != 0 {
		t.Errorf("the token was sent %d times to a proxy", n)
	}
}
