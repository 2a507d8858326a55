package identity_test

import (
	"context"
	"encoding/pem"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"sync"
	"testing"
)

// connectProxy is a proxy that requires a password, and connects each client to the same server. It is safe for
// concurrent use.
type connectProxy struct {
	*httptest.Server

	mu  sync.Mutex
	all []string
}

// startProxy starts a proxy to a server. The URL of the proxy contains the password.
func startProxy(t *testing.T, to string) *connectProxy {
	t.Helper()
	p := new(connectProxy)
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Header.Set("Authorization", r.Header.Get("Proxy-Authorization"))
		if user, password, _ := r.BasicAuth(); r.Method != http.MethodConnect || user != "me" || password != "password" {
			w.WriteHeader(http.StatusProxyAuthRequired)
			return
		}
		p.mu.Lock()
		p.all = append(p.all, r.Host)
		p.mu.Unlock()
		p.connect(r.Context(), w, to)
	}))
	t.Cleanup(p.Close)
	at, err := url.Parse(p.URL)
	if err != nil {
		t.Fatal(err)
	}
	at.User = url.UserPassword("me", "password")
	p.URL = at.String()
	return p
}

// connect copies bytes in both directions until one side ends.
func (*connectProxy) connect(ctx context.Context, w http.ResponseWriter, to string) {
	server, err := new(net.Dialer).DialContext(ctx, "tcp", to)
	if err != nil {
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	defer server.Close()
	client, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer client.Close()
	if _, err := io.WriteString(client, "HTTP/1.1 200 OK\r\n\r\n"); err != nil {
		return
	}
	go func() {
		defer server.Close()
		_, _ = io.Copy(server, buffered) // the client notices if the connection ends early
	}()
	_, _ = io.Copy(client, server)
}

// hosts returns the addresses to which clients wanted to connect.
func (p *connectProxy) hosts() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.all)
}

func certificateOf(s *httptest.Server) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}))
}
