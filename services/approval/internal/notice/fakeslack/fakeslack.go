// Package fakeslack is a fake Slack server for tests, on the loopback interface. It implements the methods of the Web
// API and the events of Socket Mode that Sluice uses.
package fakeslack

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/gorilla/websocket"
)

// AppToken and BotToken are the tokens that the fake Slack server accepts. Channel is the id of its channel.
const (
	AppToken = "xapp-geheim"
	BotToken = "xoxb-geheim" //nolint:gosec // valid only for the fake server
	Channel  = "C0123456789"
)

// Message is a message in the channel.
type Message struct {
	// TS is the timestamp that identifies the message.
	TS string
	// Text and Blocks are the current content of the message.
	Text   string
	Blocks []Block
	// Changes is the number of times that the message was changed.
	Changes int
}

// Block is a block of a message. It contains only the fields that tests read.
type Block struct {
	Type string `json:"type"`
	Text struct {
		Type string `json:"type"`
		Text string `json:"text"`
	} `json:"text"`
	Expand   bool `json:"expand"`
	Elements []struct {
		ActionID string `json:"action_id"`
		Value    string `json:"value"`
	} `json:"elements"`
}

// Button returns the value of the button with this action, or "" if the message has no such button.
func (m *Message) Button(action string) string {
	for _, b := range m.Blocks {
		for _, e := range b.Elements {
			if e.ActionID == action {
				return e.Value
			}
		}
	}
	return ""
}

// Ephemeral is a message that only User sees.
type Ephemeral struct{ User, Text string }

// Server is a running fake Slack server.
type Server struct {
	*httptest.Server
	t testing.TB

	mu         sync.Mutex
	fail       int
	socket     *websocket.Conn
	messages   []Message
	ephemerals []Ephemeral
	acks       int
}

// Start starts a fake Slack server and closes it at the end of the test.
func Start(t testing.TB) *Server {
	t.Helper()
	s := &Server{t: t}
	mux := http.NewServeMux()
	mux.HandleFunc("/apps.connections.open", s.api(AppToken, func(*http.Request) string {
		return `"url":"ws` + strings.TrimPrefix(s.URL, "http") + `/socket"`
	}))
	mux.HandleFunc("/chat.postMessage", s.api(BotToken, s.post))
	mux.HandleFunc("/chat.update", s.api(BotToken, s.update))
	mux.HandleFunc("/chat.postEphemeral", s.api(BotToken, s.postEphemeral))
	mux.HandleFunc("/socket", s.listen)
	s.Server = httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s
}

// API returns the URL of the fake server's Web API.
func (s *Server) API() string { return s.URL + "/" }

// Fail causes the next requests to post or change a message to fail. calls is the number of requests that fail.
func (s *Server) Fail(calls int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail = calls
}

// Messages returns the messages of the channel, oldest first.
func (s *Server) Messages() []Message {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Message(nil), s.messages...)
}

// Ephemerals returns the ephemeral messages, oldest first.
func (s *Server) Ephemerals() []Ephemeral {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Ephemeral(nil), s.ephemerals...)
}

// Acks returns the number of button presses that the client has acknowledged.
func (s *Server) Acks() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.acks
}

// Connected reports whether a client is connected by Socket Mode.
func (s *Server) Connected() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.socket != nil
}

// Press sends a button press to the connected client. action and value are the action and the value of the button.
func (s *Server) Press(user, channel, action, value string) {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.socket.WriteJSON(map[string]any{
		"type": "interactive", "envelope_id": fmt.Sprintf("e-%s-%s", user, action), "accepts_response_payload": true,
		"payload": map[string]any{
			"type": "block_actions", "user": map[string]any{"id": user}, "channel": map[string]any{"id": channel},
			"actions": []any{map[string]any{"type": "button", "block_id": "decide", "action_id": action, "value": value}},
		},
	})
	if err != nil {
		s.t.Error(err)
	}
}

// Disconnect closes the Socket Mode connection.
func (s *Server) Disconnect() {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.socket.Close()
	s.socket = nil
}

// api returns a handler for a method of the Web API. The handler checks the token.
func (s *Server) api(token string, answer func(*http.Request) string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if got := r.FormValue("token"); got != token && r.Header.Get("Authorization") != "Bearer "+token {
			s.t.Errorf("%s: called without its token", r.URL.Path)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		if s.fail > 0 && strings.HasPrefix(r.URL.Path, "/chat.") {
			s.fail--
			fmt.Fprint(w, `{"ok":false,"error":"internal_error"}`)
			return
		}
		fmt.Fprintf(w, `{"ok":true,%s}`, answer(r))
	}
}

func (s *Server) blocks(r *http.Request) (out []Block) {
	if err := json.Unmarshal([]byte(r.FormValue("blocks")), &out); err != nil {
		s.t.Errorf("%s: blocks: %v", r.URL.Path, err)
	}
	return out
}

func (s *Server) post(r *http.Request) string {
	m := Message{TS: fmt.Sprintf("17000000.%06d", len(s.messages)), Text: r.FormValue("text"), Blocks: s.blocks(r)}
	s.messages = append(s.messages, m)
	return fmt.Sprintf(`"channel":%q,"ts":%q`, r.FormValue("channel"), m.TS)
}

func (s *Server) update(r *http.Request) string {
	for i := range s.messages {
		if m := &s.messages[i]; m.TS == r.FormValue("ts") {
			m.Text, m.Blocks = r.FormValue("text"), s.blocks(r)
			m.Changes++
		}
	}
	return fmt.Sprintf(`"channel":%q,"ts":%q`, r.FormValue("channel"), r.FormValue("ts"))
}

func (s *Server) postEphemeral(r *http.Request) string {
	s.ephemerals = append(s.ephemerals, Ephemeral{User: r.FormValue("user"), Text: r.FormValue("text")})
	return `"message_ts":"1"`
}

func (s *Server) listen(w http.ResponseWriter, r *http.Request) {
	upgrader := websocket.Upgrader{CheckOrigin: func(*http.Request) bool { return true }}
	conn, err := upgrader.Upgrade(w, r, nil)
	if err != nil {
		s.t.Error(err)
		return
	}
	defer func() { _ = conn.Close() }()
	s.mu.Lock()
	s.socket = conn
	err = conn.WriteJSON(map[string]any{"type": "hello", "num_connections": 1})
	s.mu.Unlock()
	for err == nil {
		var ack []byte
		if _, ack, err = conn.ReadMessage(); err == nil && jsontext.Value(ack).IsValid() {
			s.mu.Lock()
			s.acks++
			s.mu.Unlock()
		}
	}
}
