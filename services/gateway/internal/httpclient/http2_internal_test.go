package httpclient

import (
	"context"
	"crypto/tls"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"
)

// Case X3. A server sends an endless HTTP/2 response that the client does not read. The connection must accept only a
// small part of the response, because no budget limits the memory that connections use for buffers.
func TestClient_BuffersLittleOfUnreadHTTP2Responses(t *testing.T) {
	t.Parallel()
	var sent atomic.Int64
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		piece := make([]byte, 8<<10)
		for r.Context().Err() == nil && r.ProtoMajor == 2 {
			n, _ := w.Write(piece)
			sent.Add(int64(n))
		}
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	transport := newTransport("127.0.0.1")
	transport.TLSClientConfig = &tls.Config{InsecureSkipVerify: true}
	defer transport.CloseIdleConnections()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	const streams = 20
	for range streams {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := transport.RoundTrip(req)
		if err != nil || resp.ProtoMajor != 2 {
			t.Fatalf("%v, %v", resp, err)
		}
		defer resp.Body.Close()
	}
	for last := int64(-1); last != sent.Load(); <-time.After(100 * time.Millisecond) {
		last = sent.Load()
	}
	t.Logf("%d KiB of each answer came unread", sent.Load()/streams>>10)
	if sent.Load() > streams*2*receiveBuffer {
		t.Errorf("%d bytes of %d answers came unread", sent.Load(), streams)
	}
}
