package hostile_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
)

const (
	// wideTools is the number of tools that the server "wide" lists. It is the maximum for a list.
	wideTools = 10_000
	// bigAnswer is the size of a response from the server "big", in bytes. It is just below the maximum that the mesh
	// accepts.
	bigAnswer = 15 << 20
	// longNumber is the number of digits in the numbers that the server "number" sends.
	longNumber = 4 << 20
)

// servers returns the hostile servers by name. Each has a tool list and a result for every call, both as JSON.
func servers() map[string]http.Handler {
	wide := make([]string, wideTools)
	for i := range wide {
		wide[i] = fmt.Sprintf(`{"name":"tool_%d","description":%q,"inputSchema":{"type":"object","properties":{"n":{"type":"integer"}}}}`, i, strings.Repeat("word ", 10))
	}
	fixed := func(text string) func() string { return func() string { return text } }
	tools := func(names ...string) string {
		list := make([]string, len(names))
		for i, name := range names {
			list[i] = fmt.Sprintf(`{"name":%q,"inputSchema":{"type":"object"}}`, name)
		}
		return "[" + strings.Join(list, ",") + "]"
	}
	big := `{"content":[{"type":"text","text":"` + strings.Repeat("x", bigAnswer) + `"}]}`
	number := `[{"name":"t","inputSchema":{"type":"object","maximum":1e-` + strings.Repeat("9", longNumber) + `}}]`
	deep := `[{"name":"t","inputSchema":` + strings.Repeat(`{"properties":`, 500) + `{"enum":["` + strings.Repeat("y", 4<<20) + `"]}` + strings.Repeat("}", 500) + `}]`
	const answer = `{"content":[{"type":"text","text":"done"}]}`
	var listed atomic.Int64
	drift := func() string { // returns another definition each time
		return fmt.Sprintf(`[{"name":"ask","description":"version %d","inputSchema":{"type":"object"}}]`, listed.Add(1))
	}
	return map[string]http.Handler{
		"wide":      mcpServer{fixed("[" + strings.Join(wide, ",") + "]"), answer},
		"number":    mcpServer{fixed(number), answer},
		"deep":      mcpServer{fixed(deep), answer},
		"big":       mcpServer{fixed(tools("big", "free", "denied", "secret")), big},
		"free":      mcpServer{fixed(tools("free", "judged", "denied", "secret")), answer},
		"drift":     mcpServer{drift, answer},
		"closed":    mcpServer{fixed(tools("denied")), answer},
		"lingering": lingeringServer{mcpServer{fixed(tools("free")), answer}},
		"trickle":   tricklingServer{mcpServer{fixed(tools("free")), answer}},
	}
}

// mcpServer is an MCP server that responds to every call with the same result.
type mcpServer struct {
	list   func() string
	answer string
}

func (s mcpServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	raw, err := io.ReadAll(r.Body)
	var m struct {
		ID     json.RawMessage `json:"id"`
		Method string          `json:"method"`
	}
	if err != nil || json.Unmarshal(raw, &m) != nil {
		http.Error(w, "no JSON", http.StatusBadRequest)
		return
	}
	if m.ID == nil {
		w.WriteHeader(http.StatusAccepted)
		return
	}
	result := s.answer
	switch m.Method {
	case "initialize":
		w.Header().Set("Mcp-Session-Id", uniqueText())
		result = `{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"hostile","version":"1"}}`
	case "tools/list":
		result = `{"tools":` + s.list() + `}`
	case "ping":
		result = "{}"
	}
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":%s}`, m.ID, result)
}

// lingeringServer does not respond to the request that ends a session.
type lingeringServer struct{ mcpServer }

func (s lingeringServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodDelete {
		<-r.Context().Done()
		return
	}
	s.mcpServer.ServeHTTP(w, r)
}
