// Package scripted provides a fake model for tests with real MCP clients. The model has a script of tool calls and
// makes them one after the other. It supports the APIs of Anthropic, OpenAI (Responses and Chat Completions) and
// Gemini.
package scripted

import (
	"crypto/rand"
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

// A Call is a tool call in a script.
type Call struct {
	// Tool is a suffix of the tool's name. A suffix is enough because clients add prefixes to the names of MCP servers'
	// tools.
	Tool string
	// Args contains the arguments as a JSON object. For a custom tool of the Responses API, Args is the tool's input.
	Args string
	// ArgsFrom, if it is not nil, returns the arguments for the given result of the previous call. Args is then not used.
	ArgsFrom func(result string) string
}

// A Model is a fake model provider on loopback for one run of a client. After it has made all its calls, it responds
// with their results as text.
//
// The model is also the client's HTTP proxy. As a proxy it refuses all requests.
type Model struct {
	// URL is the address of the provider.
	URL string

	t     *testing.T
	calls []Call

	mu   sync.Mutex
	seen Seen
	log  strings.Builder
	ids  string // the prefix of the ids of calls
}

// Seen describes the requests that a client has sent to a model.
type Seen struct {
	// Declared contains the names of the tools in the last request that declared tools.
	Declared []string
	// Results contains the results of the calls that the client has sent to the model.
	Results []string
	// Refused contains the hosts to which the client tried to connect.
	Refused []string
	// Log describes the requests.
	Log string
}

// A request contains those parts of a client's request that the model needs. The type is the same for every API.
type request struct {
	tools   []declaration
	results []string
	stream  bool
}

// A declaration is a tool as the client declares it. Only the Responses API has namespaces and custom tools.
type declaration struct {
	namespace, name string
	custom          bool
}

// A reply is a tool call if the name of its tool is not empty. Otherwise it is text.
type reply struct {
	tool declaration
	id   string
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

// New starts a model that makes the given calls.
func New(t *testing.T, calls ...Call) *Model {
	t.Helper()
	m := &Model{t: t, calls: calls, ids: "call_" + rand.Text()[:8]}
	server := httptest.NewServer(m)
	t.Cleanup(server.Close)
	m.URL = server.URL
	return m
}

// Env returns the environment variables that make a client use the model as its proxy.
func (m *Model) Env() []string {
	return []string{
		"HTTP_PROXY=" + m.URL, "HTTPS_PROXY=" + m.URL, "http_proxy=" + m.URL, "https_proxy=" + m.URL,
		"NO_PROXY=127.0.0.1", "no_proxy=127.0.0.1",
	}
}

// ServeHTTP answers a request of a client.
func (m *Model) ServeHTTP(w http.ResponseWriter, r *http.Request) {
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

// refuse refuses a request to another host, and records the host.
func (m *Model) refuse(w http.ResponseWriter, r *http.Request) {
	m.mu.Lock()
	if !slices.Contains(m.seen.Refused, r.Host) {
		m.seen.Refused = append(m.seen.Refused, r.Host)
	}
	m.mu.Unlock()
	http.Error(w, "this test has no network", http.StatusBadGateway)
}

func (m *Model) answer(w http.ResponseWriter, r *http.Request, body []byte, a api) {
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

// reply returns the first call that has no result yet. It returns text instead if all calls have results or if the
// request does not declare the call's tool. Clients also send requests without tools, for example to get a title for a
// conversation.
func (m *Model) reply(req request) reply {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.keep(req.results)
	done := len(req.results)
	if done >= len(m.calls) {
		return reply{text: "The tool returned: " + strings.Join(req.results, "\n")}
	}
	if len(req.tools) == 0 {
		return reply{text: "A conversation"}
	}
	m.seen.Declared = nil
	for _, tool := range req.tools {
		m.seen.Declared = append(m.seen.Declared, tool.namespace+tool.name)
	}
	call := m.calls[done]
	if call.ArgsFrom != nil {
		call.Args = call.ArgsFrom(req.results[done-1])
	}
	for _, tool := range req.tools {
		if strings.HasSuffix(tool.name, call.Tool) {
			return reply{tool: tool, id: fmt.Sprintf("%s_%d", m.ids, done+1), args: call.Args}
		}
	}
	return reply{text: "There is no tool " + call.Tool}
}

// keep stores the results of calls that a request contains. The test fails if the client has changed a result that it
// sent earlier.
func (m *Model) keep(results []string) {
	for i, result := range results {
		switch {
		case i == len(m.seen.Results):
			m.seen.Results = append(m.seen.Results, result)
		case result != m.seen.Results[i]:
			m.t.Errorf("the result of call %d was %s, and is now %s", i+1, m.seen.Results[i], result)
		}
	}
}

// note adds a line to the model's log.
func (m *Model) note(format string, args ...any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, _ = fmt.Fprintf(&m.log, format+"\n", args...)
}

// Seen returns a description of the requests that the client has sent so far.
func (m *Model) Seen() Seen {
	m.mu.Lock()
	defer m.mu.Unlock()
	return Seen{slices.Clone(m.seen.Declared), slices.Clone(m.seen.Results), slices.Clone(m.seen.Refused), m.log.String()}
}
