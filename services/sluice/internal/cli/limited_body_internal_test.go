package cli

import (
	"compress/gzip"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/sluice-mesh/sluice/services/sluice/internal/tokenhttp"
)

// compressingServer is an MCP server with one tool, whose definition is padded with the given number of bytes. The
// server's responses are compressed.
func compressingServer(t *testing.T, contentType string, padding int) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var request struct {
			ID     jsontext.Value `json:"id,omitzero"`
			Method string         `json:"method"`
		}
		if err := json.UnmarshalRead(r.Body, &request); err != nil || request.ID == nil {
			w.WriteHeader(http.StatusAccepted)
			return
		}
		result := `{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"x","version":"1"}}`
		if request.Method == "tools/list" {
			result = `{"tools":[{"name":"a","inputSchema":{"type":"object"},"description":"` + strings.Repeat("x", padding) + `"}]}`
		}
		before, after := "", ""
		if contentType == "text/event-stream" {
			before, after = "data: ", "\n\n"
		}
		w.Header().Set("Content-Type", contentType)
		w.Header().Set("Content-Encoding", "gzip")
		compressed := gzip.NewWriter(w)
		_, _ = io.WriteString(compressed, before+`{"jsonrpc":"2.0","id":`+string(request.ID)+`,"result":`+result+`}`+after) // the client may have gone
		_ = compressed.Close()
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// A server may send a large list in a few compressed bytes. The limit applies to the bytes after decompression.
func TestLists_EndAtALargeResponse(t *testing.T) {
	t.Parallel()
	for name, list := range map[string]func(ctx context.Context, url string) (listedServer, error){
		"a server of an entry": func(ctx context.Context, url string) (listedServer, error) { return listURL(ctx, url, nil) },
		"a mesh elsewhere": func(ctx context.Context, url string) (listedServer, error) {
			m := &meshElsewhere{url: url, token: "token", client: tokenhttp.New(nil, "")}
			return m.list(ctx, "x")
		},
	} {
		for contentType, want := range map[string]string{"application/json": errTooLarge.Error(), "text/event-stream": "event exceeded"} {
			t.Run(name+" "+contentType, func(t *testing.T) {
				t.Parallel()
				if listed, err := list(t.Context(), compressingServer(t, contentType, 1<<10)); err != nil || !strings.Contains(string(listed.tools), `"a"`) {
					t.Errorf("a small list is %s, %v", listed.tools, err)
				}
				listed, err := list(t.Context(), compressingServer(t, contentType, 18<<20))
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("a list of %d bytes: %v; want %q", len(listed.tools), err, want)
				}
			})
		}
	}
}

func TestLimitedBody_EndsWithAnErrorAfterTheLimit(t *testing.T) {
	t.Parallel()
	for size, want := range map[int]error{0: nil, maxBody: nil, maxBody + 1: errTooLarge, 2 * maxBody: errTooLarge} {
		body := &limitedBody{body: io.NopCloser(io.LimitReader(zeros{}, int64(size))), remaining: maxBody}
		n, err := io.Copy(io.Discard, body)
		if !errors.Is(err, want) || n > maxBody+1 {
			t.Errorf("%d bytes: %d were read, %v", size, n, err)
		}
	}
}

// zeros is a reader that never ends.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}
