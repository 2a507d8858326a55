package servers_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

// startNotesServer builds and starts the example gRPC server, and returns its address.
func startNotesServer(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "notes")
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-o", program, "./notes")
	build.Dir = "../../../examples"
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	cmd := exec.CommandContext(t.Context(), program, "-addr", "127.0.0.1:0")
	said, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(said).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(strings.TrimPrefix(line, "serves gRPC at "))
}

// Case T5. A gRPC server's methods are tools, and the policy applies to them. Unknown arguments are refused, and a
// streaming method counts as one call.
func TestGRPCServer_MethodsAreTools(t *testing.T) {
	t.Parallel()
	opts := stack.Options{Policy: `version: 1
name: notes
server: notes
default: deny
tools:
  note_add: {rate_limit: {max: 2, window: 60}}
  note_search: {action: allow}
  note_delete: {action: deny, reason: by people alone}
`}
	for name, start := range map[string]func() *stack.Stack{
		"up":          func() *stack.Stack { return stack.StartInProcess(t, opts) },
		"distributed": func() *stack.Stack { return stack.StartDistributed(t, opts).Stack },
	} {
		opts.Servers = fmt.Sprintf("  notes: {grpc: {target: %q, plaintext: true}}", startNotesServer(t))
		s := start()
		c := stack.Connect(t, s.MCP("notes"), stack.AgentToken)
		list := c.Post(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)
		for _, want := range []string{`"name":"note_add"`, `"name":"note_search"`, `"description":"What the note says."`, `"enum":["low","high"]`} {
			if !strings.Contains(string(list.Body), want) {
				t.Errorf("%s: tools/list has no %s: %s", name, want, list.Body)
			}
		}
		if strings.Contains(string(list.Body), "CountNotes") {
			t.Errorf("%s: tools/list has a method without the tool option: %s", name, list.Body)
		}
		added := c.Call("note_add", `{"text":"buy milk","urgency":"high"}`)
		if got := structuredContentOf(t, added); !strings.Contains(got, `"text":"buy milk","urgency":"high"`) {
			t.Errorf("%s: note_add answers %s", name, added.Body)
		}
		for arguments, says := range map[string]string{
			`{"query":"x","Query":"milk"}`: "/Query: is not known",
			`{"query":7}`:                  "/query: must be a string",
		} {
			if resp := c.Call("note_search", arguments); !resp.IsError(t) || !strings.Contains(string(resp.Body), says) {
				t.Errorf("%s: %s answers %s", name, arguments, resp.Body)
			}
		}
		if found := c.Call("note_search", `{"query":"milk"}`); !strings.Contains(structuredContentOf(t, found), `"notes":[{"id":1,"text":"buy milk","urgency":"high"}]`) {
			t.Errorf("%s: note_search answers %s", name, found.Body)
		}
		if d := c.Call("note_delete", `{"id":1}`).Decision(t); d.Code != "denied_by_rule" {
			t.Errorf("%s: note_delete is %+v", name, d)
		}
		c.Call("note_add", `{"text":"again"}`)
		if d := c.Call("note_add", `{"text":"once more"}`).Decision(t); d.Code != "rate_limited" {
			t.Errorf("%s: the third note_add is %+v", name, d)
		}
	}
}

// structuredContentOf returns the structured content of a result.
func structuredContentOf(t *testing.T, r stack.Response) string {
	t.Helper()
	var m struct {
		Result struct {
			StructuredContent json.RawMessage
		}
	}
	if err := json.Unmarshal(r.Body, &m); err != nil {
		t.Fatalf("%s: %v", r.Body, err)
	}
	return string(m.Result.StructuredContent)
}

// If a gRPC server is unavailable, the error for a call says which server it is. The gateway reads a gRPC server's
// definitions when a session is opened, so an unavailable server affects only sessions with that server.
func TestGRPCServer_UnavailableServerIsNamed(t *testing.T) {
	t.Parallel()
	s := stack.StartInProcess(t, stack.Options{Policy: stack.OpenPolicy, Servers: `  gone: {grpc: {target: "127.0.0.1:1", plaintext: true}}`})
	ran := stack.Run(t, stack.Command{Args: []string{"call", "gone", "x"}, Env: []string{"SLUICE_TOKEN=" + stack.AgentToken, "SLUICE_URL=" + s.URL}})
	if ran.Code == 0 || !strings.Contains(ran.Stderr, "gone") && !strings.Contains(ran.Stdout, "upstream_unavailable") {
		t.Errorf("the command prints %+v", ran)
	}
}
