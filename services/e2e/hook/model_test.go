package hook_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
)

// A toolCall is a call that a model asks for.
type toolCall struct {
	name  string
	input map[string]string
}

func command(text string) toolCall {
	return toolCall{"Bash", map[string]string{"command": text, "description": "a test"}}
}

// A model answers the requests of Claude Code: it asks for one call after the other.
type model struct {
	t     *testing.T
	calls []toolCall

	mu sync.Mutex
	// results contains the results of the calls, as the client reports them.
	results []string
}

// serve returns the address of the model.
func (m *model) serve() string {
	server := httptest.NewServer(m)
	m.t.Cleanup(server.Close)
	return server.URL
}

type named struct {
	Name string `json:"name"`
}

// messages is the body of a request of Claude Code, as far as the model reads it.
type messages struct {
	Tools    []named `json:"tools"`
	Messages []struct {
		Content json.RawMessage `json:"content"`
	} `json:"messages"`
}

// toolResults returns the results of calls in a conversation.
func (r messages) toolResults() (all []string) {
	for _, message := range r.Messages {
		var parts []struct {
			Type    string          `json:"type"`
			Content json.RawMessage `json:"content"`
		}
		_ = json.Unmarshal(message.Content, &parts) // a string has no results
		for _, part := range parts {
			if part.Type == "tool_result" {
				all = append(all, string(part.Content))
			}
		}
	}
	return all
}

func (m *model) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var request messages
	if r.Method != http.MethodPost || r.URL.Path != "/v1/messages" || json.NewDecoder(r.Body).Decode(&request) != nil {
		http.NotFound(w, r)
		return
	}
	results := request.toolResults()
	m.mu.Lock()
	if len(results) > len(m.results) {
		m.results = results
	}
	m.mu.Unlock()
	block, delta, stop := `{"type":"text","text":""}`, `{"type":"text_delta","text":"finished"}`, "end_turn"
	if len(results) < len(m.calls) {
		call := m.calls[len(results)]
		if slices.Contains(request.Tools, named{call.name}) {
			block = fmt.Sprintf(`{"type":"tool_use","id":"toolu_%d","name":%q,"input":{}}`, len(results), call.name)
			delta = fmt.Sprintf(`{"type":"input_json_delta","partial_json":%s}`, quotedJSON(m.t, call.input))
			stop = "tool_use"
		}
	}
	w.Header().Set("Content-Type", "text/event-stream")
	for _, data := range []string{
		`{"type":"message_start","message":{"id":"m","type":"message","role":"assistant","model":"m","content":[],"usage":{"input_tokens":1,"output_tokens":1}}}`,
		`{"type":"content_block_start","index":0,"content_block":` + block + `}`,
		`{"type":"content_block_delta","index":0,"delta":` + delta + `}`,
		`{"type":"content_block_stop","index":0}`,
		`{"type":"message_delta","delta":{"stop_reason":"` + stop + `"},"usage":{"output_tokens":1}}`,
		`{"type":"message_stop"}`,
	} {
		kind, _, _ := strings.Cut(strings.TrimPrefix(data, `{"type":"`), `"`)
		fmt.Fprintf(w, "event: %s\ndata: %s\n\n", kind, data)
	}
}

// quotedJSON returns the JSON string that contains a value as JSON.
func quotedJSON(t *testing.T, value any) string {
	t.Helper()
	raw, err := json.Marshal(value)
	if err == nil {
		raw, err = json.Marshal(string(raw))
	}
	if err != nil {
		t.Error(err)
	}
	return string(raw)
}
