package httpserver

import (
	"net/http"
	"slices"
	"strings"
)

const (
	// preflightAge is how long a browser may cache the response to a preflight request, in seconds.
	preflightAge = "600"
	// maxAskedHeaders is the maximum length of an Access-Control-Request-Headers header that is accepted, in bytes.
	maxAskedHeaders = 1 << 10
	// pageMethods are the HTTP methods that MCP uses.
	pageMethods = "POST, GET, DELETE"
)

// pageHeaders are the headers that a web page may send, in addition to headers that begin with `mcp-`.
var pageHeaders = []string{"authorization", "content-type", "last-event-id"} //nolint:gochecknoglobals // Go has no constant slices

// withCORS allows web pages of configured origins to read responses, including refusals, and answers their preflight
// requests (Fetch Standard, section 3.2). A preflight request contains no credential, so its response is the same for
// every server. Browser credentials, such as cookies, are not allowed, because MCP sends credentials in a header that
// the page must set.
func (s *Server) withCORS(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if len(s.cfg.Origins) == 0 || r.URL.Path != "/mcp" && !strings.HasPrefix(r.URL.Path, "/mcp/") {
			next.ServeHTTP(w, r)
			return
		}
		w.Header().Add("Vary", "Origin")
		origins := r.Header["Origin"]
		if len(origins) != 1 || !slices.Contains(s.cfg.Origins, origins[0]) {
			next.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Access-Control-Allow-Origin", origins[0])
		if r.Method == http.MethodOptions && r.Header.Get("Access-Control-Request-Method") != "" {
			answerPreflight(w, r)
			return
		}
		w.Header().Set("Access-Control-Expose-Headers", "Mcp-Session-Id, WWW-Authenticate")
		next.ServeHTTP(w, r)
	})
}

func answerPreflight(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Add("Vary", "Access-Control-Request-Headers")
	h.Set("Access-Control-Allow-Methods", pageMethods)
	h.Set("Access-Control-Allow-Headers", strings.Join(allowedHeaders(r.Header["Access-Control-Request-Headers"]), ", "))
	h.Set("Access-Control-Max-Age", preflightAge)
	w.WriteHeader(http.StatusNoContent)
}

// allowedHeaders returns the headers that a web page may send. CORS has no wildcard for headers that begin with `mcp-`,
// so allowedHeaders includes the requested headers with this prefix.
func allowedHeaders(requested []string) []string {
	out := append(slices.Clone(pageHeaders), "mcp-session-id", "mcp-protocol-version", "mcp-method", "mcp-name")
	if len(requested) != 1 || len(requested[0]) > maxAskedHeaders {
		return out
	}
	for name := range strings.SplitSeq(requested[0], ",") {
		name = strings.ToLower(strings.Trim(name, " \t"))
		if strings.HasPrefix(name, "mcp-") && isToken(name) && !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	return out
}

// isToken reports whether text consists of lower-case letters, digits, - and _.
func isToken(text string) bool {
	return !strings.ContainsFunc(text, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' && r != '_'
	})
}
