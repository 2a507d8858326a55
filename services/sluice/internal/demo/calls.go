package demo

import (
	"context"
	"log/slog"
	"maps"
	"net/http"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

const (
	mostRecent = 1000 // calls in [Stats.Recent]
	longest    = 128  // bytes stored of a text that the caller chose
)

// Stats counts what reached a server. A call is counted before its tool is looked up and before its arguments are
// checked, so failed calls and calls of unknown tools are included.
type Stats struct {
	// Since is when the server was created.
	Since time.Time `json:"since"`
	// Posts counts all HTTP POSTs to /mcp, including those that the protocol layer refused before they became calls (no
	// JSON-RPC, an unknown session). Always 0 over stdio.
	Posts uint64 `json:"posts"`
	// Calls counts tool calls; it is the sum of Tools and Unknown.
	Calls uint64 `json:"calls"`
	// Tools counts calls by tool. Every tool has an entry.
	Tools map[string]uint64 `json:"tools"`
	// Unknown counts calls of unknown tools.
	Unknown uint64 `json:"unknown"`
	// Recent has the last 1000 calls, oldest first.
	Recent []Call `json:"recent"`
}

// Call is one tool call as it arrived. It has no arguments, because everyone who reaches the port can read /stats.
type Call struct {
	// Tool is the requested name, cut after 128 bytes.
	Tool string    `json:"tool"`
	Time time.Time `json:"time"`
	// Traceparent is the trace context of the call (W3C Trace Context, version 00): params._meta, otherwise the HTTP
	// header. Empty without one. It is cut after 128 bytes and not checked.
	Traceparent string `json:"traceparent,omitzero"`
	// Header is the `traceparent` of the HTTP request; empty over stdio.
	Header string `json:"traceparent_header,omitzero"`
}

// TraceID returns the 32 hexadecimal digits of the call's trace; empty without a valid one.
func (c Call) TraceID() string {
	const dash1, dash2, length = 2, 35, 55
	tp := c.Traceparent
	if len(tp) != length || tp[dash1] != '-' || tp[dash2] != '-' {
		return ""
	}
	return tp[dash1+1 : dash2]
}

type recorder struct {
	log   *slog.Logger
	since time.Time

	mu      sync.Mutex
	posts   uint64
	tools   map[string]uint64
	unknown uint64
	ring    []Call // when full, next is the oldest
	next    int
}

func newRecorder(log *slog.Logger) *recorder {
	return &recorder{log: log, since: time.Now(), tools: map[string]uint64{}}
}

// know adds an entry for a tool.
func (r *recorder) know(tool string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tools[tool] = 0
}

// middleware counts each tools/call, then runs it if it is well formed, then logs it.
func (r *recorder) middleware(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		call, ok := req.(*mcp.CallToolRequest)
		if !ok {
			return next(ctx, method, req)
		}
		arrived := newCall(call)
		r.add(arrived)
		res, err := mcp.Result(nil), checkArguments(call.Params.Arguments)
		if err == nil {
			res, err = next(ctx, method, req)
		}
		r.log.InfoContext(ctx, "tool call", "tool", arrived.Tool, "outcome", outcome(res, err),
			"trace_id", arrived.TraceID(), "traceparent", arrived.Traceparent, "duration", time.Since(arrived.Time))
		return res, err
	}
}

// checkArguments refuses arguments that are not an object. The protocol requires an object, and the SDK (v1.8.0) panics
// on null when it fills in a schema's defaults, which would end the process.
func checkArguments(args []byte) error {
	if len(args) == 0 || jsontext.Value(args).Kind() == '{' {
		return nil
	}
	return &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "arguments must be an object"}
}

func newCall(req *mcp.CallToolRequest) Call {
	c := Call{Tool: cut(req.Params.Name), Time: time.Now()}
	if req.Extra != nil {
		c.Header = cut(req.Extra.Header.Get("Traceparent"))
	}
	c.Traceparent = c.Header
	if tp, ok := req.Params.Meta["traceparent"].(string); ok {
		c.Traceparent = cut(tp)
	}
	return c
}

func cut(s string) string { return s[:min(len(s), longest)] }

func outcome(res mcp.Result, err error) string {
	if err != nil {
		return "error"
	}
	if r, ok := res.(*mcp.CallToolResult); ok && r.IsError {
		return "tool_error"
	}
	return "ok"
}

func (r *recorder) add(c Call) {
	r.mu.Lock()
	defer r.mu.Unlock()
	// Only existing tools get an entry: otherwise callers could grow the map without limit.
	if _, ok := r.tools[c.Tool]; ok {
		r.tools[c.Tool]++
	} else {
		r.unknown++
	}
	if len(r.ring) < mostRecent {
		r.ring = append(r.ring, c)
		return
	}
	r.ring[r.next] = c
	r.next = (r.next + 1) % mostRecent
}

func (r *recorder) stats() Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := Stats{Since: r.since, Posts: r.posts, Tools: maps.Clone(r.tools), Unknown: r.unknown, Calls: r.unknown}
	for _, n := range s.Tools {
		s.Calls += n
	}
	s.Recent = make([]Call, 0, len(r.ring))
	s.Recent = append(append(s.Recent, r.ring[r.next:]...), r.ring[:r.next]...)
	return s
}

// countPosts counts POSTs before next serves them.
func (r *recorder) countPosts(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.Method == http.MethodPost {
			r.mu.Lock()
			r.posts++
			r.mu.Unlock()
		}
		next.ServeHTTP(w, req)
	})
}

func (r *recorder) serveStats(w http.ResponseWriter, req *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	if err := json.MarshalWrite(w, r.stats()); err != nil {
		r.log.WarnContext(req.Context(), "write statistics", "error", err)
	}
}
