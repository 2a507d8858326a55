package httpclient

import (
	"crypto/x509"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
)

// A request is sent by this package, by net/http because the request is large, or over TLS. If the function begin
// returns an error, the server receives no body. The next request succeeds.
func TestSendWhen_SendsNothingWhenBeginFails(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		tls  bool
		size int
	}{"small": {false, 10}, "large": {false, 2 * MaxRequest}, "over TLS": {true, 10}, "large, over TLS": {true, 10 * MaxRequest}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var received atomic.Int64
			handler := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				received.Add(int64(len(body)))
			})
			server := httptest.NewUnstartedServer(handler)
			if tt.tls {
				server.StartTLS()
			} else {
				server.Start()
			}
			defer server.Close()
			at, err := url.Parse(server.URL)
			if err != nil {
				t.Fatal(err)
			}
			client, head := clientFor(t, server, at)
			body := []byte(strings.Repeat("x", tt.size))
			withheld := errors.New("withheld")
			resp, err := client.SendWhen(t.Context(), func() error { return withheld }, head, nil, body)
			if !errors.Is(err, ErrNeverSent) || !errors.Is(err, withheld) || errors.Is(err, ErrUnreached) {
				if err == nil {
					_ = resp.Body.Close()
				}
				t.Fatalf("%v", err)
			}
			if resp, err := client.SendWhen(t.Context(), func() error { return withheld }, head, nil, nil); !errors.Is(err, ErrNeverSent) || !errors.Is(err, withheld) {
				if err == nil {
					_ = resp.Body.Close()
				}
				t.Fatalf("without a body: %v", err)
			}
			begun := 0
			resp, err = client.SendWhen(t.Context(), func() error { begun++; return nil }, head, nil, body)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
			if begun != 1 || received.Load() != int64(tt.size) {
				t.Errorf("begin was called %d times, and the server received %d of %d bytes", begun, received.Load(), tt.size)
			}
		})
	}
}

func clientFor(t *testing.T, server *httptest.Server, at *url.URL) (*Client, *Head) {
	t.Helper()
	var opts Options
	if cert := server.Certificate(); cert != nil {
		opts.Roots = x509.NewCertPool()
		opts.Roots.AddCert(cert)
	}
	client, err := New(at, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.CloseIdleConnections)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	head, err := NewHead(req)
	if err != nil {
		t.Fatal(err)
	}
	return client, head
}
