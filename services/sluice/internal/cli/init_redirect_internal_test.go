package cli

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
)

// A server redirects to another server. The test uses each status after which a client may repeat its request. The
// other server gets no request.
func TestListURL_SendsHeadersToNoOtherServer(t *testing.T) {
	t.Parallel()
	var reached atomic.Int32
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached.Add(1) }))
	t.Cleanup(other.Close)
	for _, status := range []int{301, 302, 303, 307, 308} {
		t.Run(http.StatusText(status), func(t *testing.T) {
			t.Parallel()
			first := httptest.NewServer(http.RedirectHandler(other.URL+"/mcp?key=secret", status))
			t.Cleanup(first.Close)
			_, err := listURL(t.Context(), first.URL, http.Header{"X-Key": {"secret"}})
			if err == nil || !strings.Contains(err.Error(), "it redirects to "+other.URL+"/mcp, where") || strings.Contains(err.Error(), "secret") {
				t.Errorf("the error is %v", err)
			}
			if reached.Load() > 0 {
				t.Error("the other server got a request")
			}
		})
	}
}
