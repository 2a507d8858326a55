package hostile_test

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"time"
)

// tricklingServer responds to a call with the beginning of a large result and then sends single bytes. It passes all
// other requests to Handler.
type tricklingServer struct{ http.Handler }

func (s tricklingServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	raw, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	if !strings.Contains(string(raw), `"tools/call"`) {
		r.Body = io.NopCloser(bytes.NewReader(raw))
		s.Handler.ServeHTTP(w, r)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, err = io.WriteString(w, `{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"`+strings.Repeat("x", 1<<20))
	for err == nil && sleep(r.Context(), 100*time.Millisecond) {
		if _, err = io.WriteString(w, "x"); err == nil {
			err = http.NewResponseController(w).Flush()
		}
	}
}
