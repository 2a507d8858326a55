package bench

import (
	"io"
	"net/http"
	"strconv"
	"sync/atomic"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// maxBody is the maximum size of a request's body, in bytes.
const maxBody = 1 << 20

// message contains the members of a request that the echo server uses.
type message struct {
	ID     jsontext.Value `json:"id"`
	Method string         `json:"method"`
	Params struct {
		Arguments struct {
			Text string `json:"text"`
		} `json:"arguments"`
	} `json:"params"`
}

// NewEcho returns a minimal MCP server. It opens sessions. Its response to a tool call contains the call's argument
// named text. It is safe for concurrent use.
func NewEcho() http.Handler {
	var sessions atomic.Int64
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(io.LimitReader(r.Body, maxBody))
		if err != nil {
			http.Error(w, "the body could not be read", http.StatusBadRequest)
			return
		}
		var m message
		if err := json.Unmarshal(body, &m); err != nil {
			http.Error(w, "the body is not JSON", http.StatusBadRequest)
			return
		}
		if m.ID == nil {
			w.WriteHeader(http.StatusAccepted)
			return
		}
		if m.Method == "initialize" {
			w.Header().Set("Mcp-Session-Id", "session-"+strconv.FormatInt(sessions.Add(1), 10))
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(answerTo(m)) // the client may have disconnected
	})
}

func answerTo(m message) []byte {
	out := append([]byte(`{"jsonrpc":"2.0","id":`), m.ID...)
	if m.Method == "initialize" {
		return append(out, `,"result":{"protocolVersion":"`+protocolVersion+`","capabilities":{"tools":{}},"serverInfo":{"name":"echo","version":"1"}}}`...)
	}
	if m.Method == "tools/list" {
		return append(out, `,"result":{"tools":[{"name":"`+toolAllowed+`"},{"name":"`+toolLimited+`"},{"name":"`+toolDenied+`"},{"name":"`+toolConditional+`"},{"name":"say"}]}}`...)
	}
	out = append(out, `,"result":{"content":[{"type":"text","text":"echo: `...)
	out = append(out, m.Params.Arguments.Text...) // echoText needs no escapes
	return append(out, `"}],"isError":false}}`...)
}
