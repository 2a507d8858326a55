// Package rawmcp is an MCP server for tests that keeps the very bytes it
// receives and answers with the very bytes it is told to. It parses as little as
// it can, so that what a test asserts is what went over the wire.
package rawmcp

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
)

// Request is one POST as it came.
type Request struct {
	// Body is the bytes.
	Body []byte
	// Header is the head.
	Header http.Header
	// Method is the JSON-RPC method, as encoding/json reads it.
	Method string
	// Name is params.name, likewise.
	Name string
}

// Server is a server under test control. It is safe for concurrent use.
type Server struct {
	// URL is its MCP endpoint.
	URL string

	web      *httptest.Server
	mu       sync.Mutex
	requests []Request
	own      []Request
	ended    []string
	answers  map[string]Answer
	tools    string
	second   string
}

// Stop ends the server, so that nobody reaches it any more.
func (s *Server) Stop() {
	s.web.CloseClientConnections()
	s.web.Close()
}

// Answer writes the answer to a request whose raw id is id.
type Answer func(w http.ResponseWriter, r *http.Request, id string)

// Result answers with a result of these bytes.
func Result(raw string) Answer {
	return func(w http.ResponseWriter, _ *http.Request, id string) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":%s}`, id, raw)
	}
}

// Start starts a server that lists tools, a JSON array, and answers every call
// with a text. It ends with the test.
func Start(t testing.TB, tools string) *Server {
	t.Helper()
	s := &Server{answers: make(map[string]Answer), tools: tools}
	s.web = httptest.NewServer(http.HandlerFunc(s.serve))
	t.Cleanup(s.Stop)
	s.URL = s.web.URL + "/mcp"
	return s
}

// On sets the answer to calls of a tool; an empty name is every method that is
// not a call.
func (s *Server) On(tool string, answer Answer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answers[tool] = answer
}

// List sets the tools that the server lists from now on, a JSON array.
func (s *Server) List(tools string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tools = tools
}

// SecondPage has the list go on behind the cursor "2", from now on; empty: it has one page.
func (s *Server) SecondPage(tools string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.second = tools
}

// Calls returns the tools/call requests that arrived, or those of one tool.
func (s *Server) Calls(tool ...string) []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []Request
	for _, r := range s.requests {
		if r.Method == "tools/call" && (len(tool) == 0 || r.Name == tool[0]) {
			out = append(out, r)
		}
	}
	return out
}

// ownSession is that of the gateway itself, which lists servers by its own.
const ownSession = "own-session"

// Own returns what arrived in the gateway's own sessions.
func (s *Server) Own() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Request(nil), s.own...)
}

// Requests returns everything that arrived but in the gateway's own sessions.
func (s *Server) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Request(nil), s.requests...)
}

// Forget drops what has arrived so far, of which there may be much.
func (s *Server) Forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests, s.own = nil, nil
}

// Ended returns the sessions that were ended by DELETE.
func (s *Server) Ended() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.ended...)
}

// envelope is what the server needs of a message.
type envelope struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params struct {
		Name            string `json:"name"`
		Cursor          string `json:"cursor"`
		ProtocolVersion string `json:"protocolVersion"`
		ClientInfo      struct {
			Name string `json:"name"`
		} `json:"clientInfo"`
	} `json:"params"`
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodDelete && r.Header.Get("Mcp-Session-Id") != ownSession {
		s.mu.Lock()
		s.ended = append(s.ended, r.Header.Get("Mcp-Session-Id"))
		s.mu.Unlock()
	}
	if r.Method != http.MethodPost {
		w.WriteHeader(http.StatusOK)
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	var m envelope
	if err := json.Unmarshal(body, &m); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s.answerTo(m, body, r)(w, r, string(m.ID))
}

// answerTo notes a request and finds the answer to it.
func (s *Server) answerTo(m envelope, body []byte, r *http.Request) Answer {
	s.mu.Lock()
	defer s.mu.Unlock()
	session, came := "raw-session", Request{Body: body, Header: r.Header.Clone(), Method: m.Method, Name: m.Params.Name}
	if m.Params.ClientInfo.Name == "sluice" || r.Header.Get("Mcp-Session-Id") == ownSession {
		session = ownSession
		s.own = append(s.own, came)
	} else {
		s.requests = append(s.requests, came)
	}
	if m.ID == nil {
		return func(w http.ResponseWriter, _ *http.Request, _ string) { w.WriteHeader(http.StatusAccepted) }
	}
	switch m.Method {
	case "initialize":
		return func(w http.ResponseWriter, r *http.Request, id string) {
			w.Header().Set("Mcp-Session-Id", session)
			Result(`{"protocolVersion":"`+m.Params.ProtocolVersion+`","capabilities":{"tools":{}},"serverInfo":{"name":"raw","version":"1"}}`)(w, r, id)
		}
	case "tools/list":
		switch {
		case s.second != "" && m.Params.Cursor == "2":
			return Result(`{"tools":` + s.second + `}`)
		case s.second != "":
			return Result(`{"tools":` + s.tools + `,"nextCursor":"2"}`)
		}
		return Result(`{"tools":` + s.tools + `}`)
	case "tools/call":
		if answer, ok := s.answers[m.Params.Name]; ok {
			return answer
		}
		return Result(`{"content":[{"type":"text","text":"ran"}]}`)
	}
	if answer, ok := s.answers[""]; ok {
		return answer
	}
	return Result(`{}`)
}
