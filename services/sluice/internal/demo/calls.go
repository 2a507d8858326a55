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
	maxRecentCalls = 1000 // the maximum number of calls in [Stats.Recent]
	maxTextLength  = 128  // the maximum length of a stored string from a caller, in bytes
)

// Stats contains the numbers of requests that reached a server. They include failed calls and calls to unknown tools.
type Stats struct {
	// Since is the time when the server was created.
	Since time.Time `json:"since"`
	// Posts is the number of HTTP POST requests to /mcp. It includes requests that were refused because they were not
	// JSON-RPC or contained an unknown session. It is 0 over stdio.
	Posts uint64 `json:"posts"`
	// Calls is the number of tool calls. It is the sum of the counts in Tools and Unknown.
	Calls uint64 `json:"calls"`
	// Tools maps each tool to the number of calls to the tool. Every tool has an entry.
	Tools map[string]uint64 `json:"tools"`
	// Unknown is the number of calls to unknown tools.
	Unknown uint64 `json:"unknown"`
	// Recent contains the last 1000 calls, oldest first.
	Recent []Call `json:"recent"`
}

// Call is one tool call as the server received it. It has no arguments, because every client that can access the port
// can read /stats.
type Call struct {
	// Tool is the requested name, truncated to 128 bytes.
	Tool string    `json:"tool"`
	Time time.Time `json:"time"`
	// Traceparent is the `traceparent` of the call (W3C Trace Context, version 00). It comes from params._meta or else
	// from the HTTP header. It may be empty. It is truncated to 128 bytes and not validated.
	Traceparent string `json:"traceparent,omitzero"`
	// Header is the `traceparent` of the HTTP request. It is empty over stdio.
	Header string `json:"traceparent_header,omitzero"`
}

// TraceID returns the 32 hexadecimal digits of the trace id in Traceparent, or "" if Traceparent is not valid.
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
	recent  []Call // the last calls; when the slice is full, the oldest call is at the index oldest
	oldest  int
}

func newRecorder(log *slog.Logger) *recorder {
	return &recorder{log: log, since: time.Now(), tools: map[string]uint64{}}
}

// addTool adds an entry for a tool, so that calls to the tool don't count as unknown.
func (r *recorder) addTool(tool string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tools[tool] = 0
}

// middleware returns a handler that counts each tools/call request and logs the outcome. It runs the request only if
// the arguments are an object.
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

// checkArguments returns an error unless the arguments are an object, as MCP requires. If the arguments were null, the
// SDK (v1.8.0) would panic when it adds the defaults of a schema, and the process would exit.
func checkArguments(args []byte) error {
	if len(args) == 0 || jsontext.Value(args).Kind() == '{' {
		return nil
	}
	return &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "arguments must be an object"}
}

func newCall(req *mcp.CallToolRequest) Call {
	c := Call{Tool: truncate(req.Params.Name), Time: time.Now()}
	if req.Extra != nil {
		c.Header = truncate(req.Extra.Header.Get("Traceparent"))
	}
	c.Traceparent = c.Header
	if tp, ok := req.Params.Meta["traceparent"].(string); ok {
		c.Traceparent = truncate(tp)
	}
	return c
}

func truncate(s string) string { return s[:min(len(s), maxTextLength)] }

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
	// Only existing tools have an entry. Otherwise callers could grow the map without limit.
	if _, ok := r.tools[c.Tool]; ok {
		r.tools[c.Tool]++
	} else {
		r.unknown++
	}
	if len(r.recent) < maxRecentCalls {
		r.recent = append(r.recent, c)
		return
	}
	r.recent[r.oldest] = c
	r.oldest = (r.oldest + 1) % maxRecentCalls
}

func (r *recorder) stats() Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := Stats{Since: r.since, Posts: r.posts, Tools: maps.Clone(r.tools), Unknown: r.unknown, Calls: r.unknown}
	for _, n := range s.Tools {
		s.Calls += n
	}
	s.Recent = make([]Call, 0, len(r.recent))
	s.Recent = append(append(s.Recent, r.recent[r.oldest:]...), r.recent[:r.oldest]...)
	return s
}

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
		r.log.WarnContext(req.Context(), "the statistics were not sent to the client", "error", err)
	}
}
