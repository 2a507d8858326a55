package realclients_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
)

// A model is a provider of models on loopback for one run of a client. It calls one tool, and then answers with the
// tool's result. It supports the APIs of Anthropic, OpenAI (Responses and Chat Completions) and Gemini.
//
// The model is also the client's HTTP proxy. As a proxy it refuses all requests.
type model struct {
	t    *testing.T
	url  string
	tool string // the name in the MCP server; the client's name for the tool ends with it
	args string // JSON

	mu       sync.Mutex
	declared []string // the tools in the last request that declares tools
	results  []string // the different tool results in requests
	refused  []string // the hosts to which the client tried to connect
	log      strings.Builder
}

// A request is what the model needs of a request in any API.
type request struct {
	tools   []declaration
	results []string
	stream  bool
}

// A declaration is a tool as the client declares it. Namespace is empty except in the Responses API.
type declaration struct{ namespace, name string }

// A reply is a tool call if the name of the tool is not empty, otherwise it is text.
type reply struct {
	tool declaration
	args string
	text string
}

// An api reads and writes the messages of one provider.
type api struct {
	read  func(body []byte) (request, error)
	write func(reply) []event
	// whole returns the response to a request that does not stream.
	whole func(reply) any
}

// An event is a server-sent event. If name is empty, only data is sent.
type event struct {
	name string
	data any
}

func newModel(t *testing.T, tool, args string) *model {
	t.Helper()
	m := &model{t: t, tool: tool, args: args}
	server := httptest.NewServer(m)
	t.Cleanup(server.Close)
	m.url = server.URL
	return m
}

func (m *model) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodConnect || r.URL.IsAbs() {
		m.refuse(w, r)
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	switch path := r.URL.Path; {
	case strings.HasSuffix(path, "/v1/messages"):
		m.answer(w, r, body, anthropic())
	case strings.HasSuffix(path, "/responses"):
		m.answer(w, r, body, responses())
	case strings.HasSuffix(path, "/chat/completions"):
		m.answer(w, r, body, completions())
	case strings.HasSuffix(path, ":streamGenerateContent"), strings.HasSuffix(path, ":generateContent"):
		g := gemini()
		if strings.HasSuffix(path, ":streamGenerateContent") {
			g = streaming(g)
		}
		m.answer(w, r, body, g)
	case strings.HasSuffix(path, "/count_tokens"):
		_, _ = io.WriteString(w, `{"input_tokens": 100}`)
	case strings.HasSuffix(path, ":countTokens"):
		_, _ = io.WriteString(w, `{"totalTokens": 100}`)
	default:
		m.note("%s %s is not answered", r.Method, path)
		http.NotFound(w, r)
	}
}

// refuse answers a request to another host.
func (m *model) refuse(w http.ResponseWriter, r *http.Request) {
	m.mu.Lock()
	if !slices.Contains(m.refused, r.Host) {
		m.refused = append(m.refused, r.Host)
	}
	m.mu.Unlock()
	http.Error(w, "this test has no network", http.StatusBadGateway)
}

func (m *model) answer(w http.ResponseWriter, r *http.Request, body []byte, a api) {
	req, err := a.read(body)
	if err != nil {
		m.t.Errorf("%s: %v: %.500s", r.URL.Path, err, body)
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	rep := m.reply(req)
	m.note("%s: %d tool(s), %d result(s): calls %q", r.URL.Path, len(req.tools), len(req.results), rep.tool.name)
	if !req.stream {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(a.whole(rep))
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	for _, e := range a.write(rep) {
		if e.name != "" {
			_, _ = fmt.Fprintf(w, "event: %s\n", e.name)
		}
		data, ok := e.data.(string)
		if !ok {
			raw, err := json.Marshal(e.data)
			if err != nil {
				m.t.Error(err)
			}
			data = string(raw)
		}
		_, _ = fmt.Fprintf(w, "data: %s\n\n", data)
	}
}

// reply calls the tool if the request declares it and has no result yet. Clients also send requests without tools, such
// as for the title of a conversation.
func (m *model) reply(req request) reply {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, result := range req.results {
		if !slices.Contains(m.results, result) {
			m.results = append(m.results, result)
		}
	}
	if len(req.results) > 0 {
		return reply{text: "The tool returned: " + strings.Join(req.results, "\n")}
	}
	if len(req.tools) == 0 {
		return reply{text: "A conversation"}
	}
	m.declared = nil
	for _, tool := range req.tools {
		m.declared = append(m.declared, tool.namespace+tool.name)
	}
	for _, tool := range req.tools {
		if strings.HasSuffix(tool.name, m.tool) {
			return reply{tool: tool, args: m.args}
		}
	}
	return reply{text: "There is no tool " + m.tool}
}

// note adds a line to the log of the model.
func (m *model) note(format string, args ...any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, _ = fmt.Fprintf(&m.log, format+"\n", args...)
}

// seen returns what the client sent: the declared tools, the tool results, and the refused hosts.
func (m *model) seen() (declared, results, refused []string, log string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.declared), slices.Clone(m.results), slices.Clone(m.refused), m.log.String()
}
