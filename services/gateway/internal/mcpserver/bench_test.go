package mcpserver_test

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"testing"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/sluice-mesh/sluice/services/gateway/internal/gatewaytest"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

// BenchmarkCall measures how long the gateway takes for an allowed tools/call, from the parsed HTTP headers to the
// answer. There are no network connections, and the fake services respond immediately.
func BenchmarkCall(b *testing.B) {
	w := prepareTestGateway(b, "")
	w.Sampler = sdktrace.NeverSample() // most calls are not sampled
	w.Policy.Revision, w.Policy.Access.PolicyRevision = "r1", "r1"
	w.build()
	session := w.connect().Get("Mcp-Session-Id")
	var same upstream.Answer
	w.files.Request = func(_ context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
		if same.Message == nil {
			same = gatewaytest.Result(r, `{"content":[]}`)
		}
		return same, nil
	}
	handler := w.MCP.HTTPServer().Handler
	header := http.Header{
		"Authorization": {"Bearer " + anaToken}, "Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"},
		"Mcp-Session-Id": {session}, "Mcp-Protocol-Version": {"2025-11-25"},
	}
	body := bytes.NewReader(nil)
	to := &dropped{header: make(http.Header)}
	ctx, cancel := context.WithCancel(b.Context()) // net/http also creates a context for each request
	defer cancel()
	b.ReportAllocs()
	for b.Loop() {
		body.Reset([]byte(toolCall))
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://localhost/mcp/files", io.NopCloser(body))
		if err != nil {
			b.Fatal(err)
		}
		r.Header, r.ContentLength, r.RemoteAddr, to.status = header, int64(len(toolCall)), "127.0.0.1:1", 0
		handler.ServeHTTP(to, r)
		if to.status != http.StatusOK {
			b.Fatalf("status %d", to.status)
		}
		w.Journal.Forget()
		w.Policy.Forget()
		w.files.Forget()
	}
}

type dropped struct {
	header http.Header
	status int
}

func (d *dropped) Header() http.Header         { return d.header }
func (d *dropped) WriteHeader(status int)      { d.status = status }
func (d *dropped) Write(p []byte) (int, error) { return len(p), nil }
