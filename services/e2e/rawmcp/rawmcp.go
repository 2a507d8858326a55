// Package rawmcp provides an MCP server that records the exact bytes that it receives, and responds with the exact
// bytes that a test specifies. It parses as little as possible, so that tests can compare the bytes on the wire.
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

// Request is one received POST request.
type Request struct {
	// Body is the unchanged body of the HTTP request.
	Body []byte
	// Header contains the HTTP headers.
	Header http.Header
	// Method is the JSON-RPC method, as encoding/json reads it.
	Method string
	// Name is params.name, as encoding/json reads it.
	Name string
}

// Server is an MCP server whose responses are set by the test. It is safe for concurrent use.
type Server struct {
	// URL is the URL of the MCP endpoint.
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

// Stop closes the server and its connections. Later connections are refused.
func (s *Server) Stop() {
	s.web.CloseClientConnections()
	s.web.Close()
}

// Answer is a function that writes the response to a request. id is the JSON-RPC id of the request as raw JSON.
type Answer func(w http.ResponseWriter, r *http.Request, id string)

// Result returns an Answer that sends the given JSON as the result.
func Result(raw string) Answer {
	return func(w http.ResponseWriter, _ *http.Request, id string) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":%s}`, id, raw)
	}
}

// Start starts a server that lists the given tools and responds to every call with the text "ran". tools is a JSON
// array. The server is stopped when the test ends.
func Start(t testing.TB, tools string) *Server {
	t.Helper()
	s := &Server{answers: make(map[string]Answer), tools: tools}
	s.web = httptest.NewServer(http.HandlerFunc(s.serve))
	t.Cleanup(s.Stop)
	s.URL = s.web.URL + "/mcp"
	return s
}

// SetAnswer sets the response to calls to a tool. An empty name selects all methods except initialize, tools/list and
// tools/call.
func (s *Server) SetAnswer(tool string, answer Answer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answers[tool] = answer
}

// SetTools replaces the tools that the server lists. tools is a JSON array.
func (s *Server) SetTools(tools string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tools = tools
}

// SetSecondPage sets the tools on the second page of the list. The second page has the cursor "2". If tools is empty,
// the list has only one page.
func (s *Server) SetSecondPage(tools string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.second = tools
}

// Calls returns the received tools/call requests. If a tool is given, it returns only the requests for that tool.
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

// ownSession is the id of the session in which the gateway lists the server's tools for itself.
const ownSession = "own-session"

// OwnRequests returns the messages that the server has received in sessions in which the gateway lists the tools for
// itself.
func (s *Server) OwnRequests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Request(nil), s.own...)
}

// Requests returns all messages that the server has received, except those in the gateway's own sessions.
func (s *Server) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Request(nil), s.requests...)
}

// DropRequests discards the messages received so far, to free memory.
func (s *Server) DropRequests() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests, s.own = nil, nil
}

// EndedSessions returns the ids of the sessions that were ended by DELETE, except the ids of the gateway's own
// sessions.
func (s *Server) EndedSessions() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.ended...)
}

// envelope contains the message members that the server reads.
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
	s.recordAndAnswer(m, body, r)(w, r, string(m.ID))
}

// recordAndAnswer records a request and returns its Answer.
func (s *Server) recordAndAnswer(m envelope, body []byte, r *http.Request) Answer {
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
