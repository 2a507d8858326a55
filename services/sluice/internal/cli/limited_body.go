package cli

import (
	"fmt"
	"io"
	"net/http"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// limitedTransport returns a transport for listing a server's tools with Streamable HTTP. It limits the sizes of bodies
// and events after decompression, because the MCP library reads a whole response body before it decodes the body.
func limitedTransport(endpoint string, base http.RoundTripper) mcp.Transport {
	return &mcp.StreamableClientTransport{
		Endpoint: endpoint, HTTPClient: &http.Client{Transport: bodyLimiter{base}}, MaxRetries: -1, DisableStandaloneSSE: true,
		MaxEventSize: maxResponse,
	}
}

// bodyLimiter limits the size of response bodies. If an event stream exceeds this limit, the MCP library's error does
// not say so. If a single event is too large, the library's error names the limit for events. Therefore the limit for
// bodies is larger than the limit for events.
type bodyLimiter struct{ http.RoundTripper }

const maxBody = maxResponse + 1<<20

func (b bodyLimiter) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := b.RoundTripper.RoundTrip(r)
	if err == nil {
		resp.Body = &limitedBody{body: resp.Body, remaining: maxBody}
	}
	return resp, err
}

var errTooLarge = fmt.Errorf("the response is larger than %d MiB", maxBody>>20)

// limitedBody is a response body. Reading fails if the body is too large.
type limitedBody struct {
	body io.ReadCloser
	// remaining is the number of bytes that may still be read, or -1 after the limit was exceeded.
	remaining int
}

func (b *limitedBody) Read(p []byte) (int, error) {
	if b.remaining < 0 {
		return 0, errTooLarge
	}
	n, err := b.body.Read(p[:min(len(p), b.remaining+1)])
	if b.remaining -= n; b.remaining < 0 {
		return n, errTooLarge
	}
	return n, err
}

func (b *limitedBody) Close() error { return b.body.Close() }
