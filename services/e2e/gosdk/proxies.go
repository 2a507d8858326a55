package gosdk

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"testing"
)

// SessionsOnlyProxy returns the URL of a proxy for endpoint that accepts only the protocol revisions that use sessions.
// Without the proxy, the SDK's client and server would use revision 2026-07-28, which both of them prefer.
func SessionsOnlyProxy(t *testing.T, endpoint string) string {
	t.Helper()
	return startRevisionProxy(t, endpoint, true, "2025-11-25")
}

// SessionlessOnlyProxy returns the URL of a proxy for endpoint that accepts only protocol revision 2026-07-28.
func SessionlessOnlyProxy(t *testing.T, endpoint string) string {
	t.Helper()
	return startRevisionProxy(t, endpoint, false, "2026-07-28")
}

// startRevisionProxy returns the URL of a proxy that forwards either the requests of revision 2026-07-28 or the
// requests of revisions that use sessions. If refuses is true, the proxy refuses the requests of revision 2026-07-28.
// The proxy's errors name the given revision as the supported one.
func startRevisionProxy(t *testing.T, endpoint string, refuses bool, spoken string) string {
	t.Helper()
	to, err := url.Parse(endpoint)
	if err != nil {
		t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{FlushInterval: -1, Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to); r.Out.URL.Path = to.Path }}
	door := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return // the client disconnected
		}
		if bytes.Contains(body, []byte("io.modelcontextprotocol/protocolVersion")) == refuses {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":1,"error":{"code":-32022,"message":"x","data":{"supported":["%s"],"requested":"x"}}}`, spoken)
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(door.Close)
	return door.URL
}
