package hook_test

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/e2e/scripted"
)

// A server is a running client that another program, such as an editor, would control by JSON-RPC over stdio. Here the
// test controls it.
type server struct {
	t     *testing.T
	to    io.WriteCloser
	from  *bufio.Scanner
	calls int
	// asked contains the client's questions about calls. The test answers each of them with the field answer.
	asked  []string
	answer string
}

// message is a JSON-RPC message. Codex does not write the version, and ignores it.
type message struct {
	Version string          `json:"jsonrpc,omitempty"`
	ID      json.RawMessage `json:"id,omitempty"`
	Method  string          `json:"method,omitempty"`
	Params  any             `json:"params,omitempty"`
	Result  json.RawMessage `json:"result,omitempty"`
	Error   json.RawMessage `json:"error,omitempty"`
}

// serve starts a client that is controlled over stdio. The client is stopped when the test ends.
func (h *home) serve(c client, m *scripted.Model, answer string, args ...string) *server {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), clientLimit)
	cmd := h.command(ctx, c, m, args)
	to, from := h.pipes(cmd)
	s := &server{t: h.t, to: to, from: bufio.NewScanner(from), answer: answer}
	s.from.Buffer(nil, 8<<20)
	if err := cmd.Start(); err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() {
		cancel()
		_ = cmd.Wait() // its exit code does not matter
	})
	return s
}

// codexServer starts `codex app-server`. When Codex asks about a call, the test declines the call.
func (h *home) codexServer(m *scripted.Model) *server {
	h.t.Helper()
	s := h.serve(codex(), m, `{"decision":"decline"}`, append([]string{"app-server"}, codexSettings(m.URL)...)...)
	s.call("initialize", object{"clientInfo": object{"name": "test", "version": "1"}}, nil)
	s.send(message{Method: "initialized"})
	return s
}

type object = map[string]any

func (h *home) pipes(cmd *exec.Cmd) (io.WriteCloser, io.Reader) {
	h.t.Helper()
	to, err := cmd.StdinPipe()
	if err != nil {
		h.t.Fatal(err)
	}
	from, err := cmd.StdoutPipe()
	if err != nil {
		h.t.Fatal(err)
	}
	return to, from
}

func (s *server) send(m message) {
	s.t.Helper()
	m.Version = "2.0"
	raw, err := json.Marshal(m)
	if err == nil {
		_, err = s.to.Write(append(raw, '\n'))
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

// until reads messages until the function match returns true for a message. Meanwhile it answers the client's questions
// about calls.
func (s *server) until(what string, match func(message) bool) message {
	s.t.Helper()
	for s.from.Scan() {
		var m message
		if err := json.Unmarshal(s.from.Bytes(), &m); err != nil {
			s.t.Fatalf("%v: %s", err, s.from.Bytes())
		}
		if strings.HasSuffix(m.Method, "/requestApproval") || m.Method == "session/request_permission" {
			s.asked = append(s.asked, s.from.Text())
			s.send(message{ID: m.ID, Result: json.RawMessage(s.answer)})
		}
		if match(m) {
			return m
		}
	}
	s.t.Fatalf("the client ended before %s: %v", what, s.from.Err())
	return message{}
}

// call calls a method. It unmarshals the method's result into the parameter result, unless this parameter is nil.
func (s *server) call(method string, params, result any) {
	s.t.Helper()
	s.calls++
	id, err := json.Marshal(s.calls)
	if err != nil {
		s.t.Fatal(err)
	}
	s.send(message{ID: id, Method: method, Params: params})
	m := s.until(method, func(m message) bool { return m.Method == "" && slices.Equal(m.ID, id) })
	if m.Error != nil {
		s.t.Fatalf("%s: %s", method, m.Error)
	}
	if result != nil {
		if err := json.Unmarshal(m.Result, result); err != nil {
			s.t.Fatal(err)
		}
	}
}

// begin sends a prompt in a new conversation, in which Codex asks about each call. The returned function waits until
// the turn is over.
func (s *server) begin(dir string) func() {
	s.t.Helper()
	var started struct{ Thread struct{ ID string } }
	s.call("thread/start", object{"cwd": dir, "approvalPolicy": "untrusted", "sandbox": "danger-full-access"}, &started)
	s.call("turn/start", object{"threadId": started.Thread.ID, "input": []any{object{"type": "text", "text": prompt}}}, nil)
	return func() {
		s.t.Helper()
		s.until("the end of the turn", func(m message) bool { return m.Method == "turn/completed" })
	}
}

// trustHooks makes Codex trust all hooks, as a user does with /hooks.
func (h *home) trustHooks() {
	h.t.Helper()
	s := h.codexServer(scripted.New(h.t))
	type listed struct {
		Data []struct {
			Hooks []struct{ Key, CurrentHash, TrustStatus string }
		}
	}
	list := func() (all listed) {
		s.call("hooks/list", object{"cwds": []string{h.path("project")}}, &all)
		return all
	}
	state := object{}
	for _, hook := range list().Data[0].Hooks {
		state[hook.Key] = object{"trusted_hash": hook.CurrentHash}
	}
	s.call("config/batchWrite", object{"edits": []any{object{"keyPath": "hooks.state", "value": state, "mergeStrategy": "upsert"}}}, nil)
	hooks := list().Data[0].Hooks
	for _, hook := range hooks {
		if hook.TrustStatus != "trusted" {
			h.t.Errorf("the hook %s is %s", hook.Key, hook.TrustStatus)
		}
	}
	if len(hooks) == 0 {
		h.t.Error("Codex has no hooks")
	}
}
