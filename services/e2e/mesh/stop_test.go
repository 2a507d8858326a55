package mesh_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sluice-mesh/sluice/services/e2e/gosdk"
	"github.com/sluice-mesh/sluice/services/e2e/rawmcp"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
)

// heldCall is a mesh with a call in flight that its server has received. The server answers only when the test releases
// the call.
type heldCall struct {
	*stack.Process
	client *stack.Client
	answer chan heldResult
}

type heldResult struct {
	resp stack.Response
	err  error
}

// startHeldCall starts a mesh with servers, calls the tool "safe" of one of them, and waits until that server has
// received the call.
func startHeldCall(t *testing.T, servers, server string, arrived func() bool) *heldCall {
	t.Helper()
	p := stack.Start(t, stack.WriteConfig(t, stack.Options{Servers: servers, Policy: stack.OpenPolicy}))
	h := &heldCall{Process: p, client: stack.Connect(t, p.MCP(server), stack.AgentToken), answer: make(chan heldResult, 1)}
	go func() {
		resp, err := h.client.TryPost([]byte(stack.CallRequest(`{"name":"safe"}`)))
		h.answer <- heldResult{resp, err}
	}()
	eventually.Holds(t, "the call reaches its server", arrived)
	return h
}

// interruptAndAwaitStop sends SIGINT and waits until the gateway accepts no new connections.
func (h *heldCall) interruptAndAwaitStop(t *testing.T, server string) {
	t.Helper()
	h.Interrupt(t)
	eventually.Holds(t, "the stopping gateway takes no new connections", func() bool {
		_, err := stack.NewClient(t, h.MCP(server), stack.AgentToken).TryPost([]byte("{}"))
		return err != nil
	})
}

// checkEnd checks that the process exited with code 0 and that the journal contains the call's intent and outcome.
func (h *heldCall) checkEnd(t *testing.T) {
	t.Helper()
	if err := h.Wait(); err != nil {
		t.Errorf("after Ctrl-C the mesh ended with %v, want exit code 0\n%s", err, h.Stderr())
	}
	calls := newHashChain(h.Journal(), "calls")
	calls.readNewRecords(t)
	if calls.recordCount() != 2 || len(calls.intents) != 1 || calls.incompleteBytes != 0 {
		t.Fatalf("the journal has %d records of %d calls, want an intent and its outcome", calls.recordCount(), len(calls.intents))
	}
	for trace := range calls.intents {
		if calls.outcomes[trace] != 1 {
			t.Error("the call's outcome is not in the journal")
		}
	}
}

// Ctrl-C arrives while a call is in flight. The caller still receives the result, and the journal still records the
// outcome.
func TestStop_CtrlCFinishesACallInFlight(t *testing.T) {
	t.Parallel()
	t.Run("over HTTP", func(t *testing.T) {
		t.Parallel()
		up, arrived, release := holdingServer(t)
		h := startHeldCall(t, fmt.Sprintf("  up: {http: {url: %q}}", up.URL), "up", func() bool { return isClosed(arrived) })
		ended := len(up.EndedSessions())
		h.interruptAndAwaitStop(t, "up")
		if len(up.EndedSessions()) != ended {
			t.Error("the session with the server was ended during the call")
		}
		close(release)
		if got := <-h.answer; got.err != nil || got.resp.Text(t) != "late" {
			t.Errorf("the caller received %q, %v", got.resp.Body, got.err)
		}
		h.checkEnd(t)
		if len(up.EndedSessions()) != ended+1 {
			t.Errorf("%d sessions of the server were ended, want 1", len(up.EndedSessions())-ended)
		}
	})
	t.Run("over stdio", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		h := startHeldCall(t, fmt.Sprintf("  up: {stdio: {command: [%q], env: {%s: %q}}}", os.Args[0], slowServer, dir), "up",
			func() bool { return fileExists(filepath.Join(dir, "arrived")) })
		h.interruptAndAwaitStop(t, "up")
		stack.WriteFile(t, filepath.Join(dir, "release"), "")
		if got := <-h.answer; got.err != nil || got.resp.Text(t) != "late" {
			t.Errorf("the caller received %q, %v", got.resp.Body, got.err)
		}
		h.checkEnd(t)
	})
	t.Run("a call that takes too long is cut off and recorded", func(t *testing.T) {
		t.Parallel()
		up, arrived, release := holdingServer(t)
		h := startHeldCall(t, fmt.Sprintf("  up: {http: {url: %q}}", up.URL), "up", func() bool { return isClosed(arrived) })
		defer close(release)
		h.interruptAndAwaitStop(t, "up")
		if got := <-h.answer; got.err != nil || got.resp.Decision(t).Code != "outcome_unknown" {
			t.Errorf("the caller received %q, %v", got.resp.Body, got.err)
		}
		h.checkEnd(t)
	})
}

// holdingServer returns a server that answers calls to "safe" only after the channel release is closed. The channel
// arrived is closed when the first call has arrived.
func holdingServer(t *testing.T) (up *rawmcp.Server, arrived, release chan struct{}) {
	t.Helper()
	up = rawmcp.Start(t, rawmcp.Tools)
	arrived, release = make(chan struct{}), make(chan struct{})
	up.SetAnswer("safe", func(w http.ResponseWriter, r *http.Request, id string) {
		close(arrived)
		<-release
		rawmcp.Result(`{"content":[{"type":"text","text":"late"}]}`)(w, r, id)
	})
	return up, arrived, release
}

func isClosed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func fileExists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

// slowServer is the name of the environment variable that makes this test binary run as a stdio server. The variable's
// value is a directory. When the server is called, it creates the file `arrived` in this directory, and answers when
// the file `release` exists.
const slowServer = "E2E_SLOW_SERVER"

func runSlowServer() int {
	dir := os.Getenv(slowServer)
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var m struct {
			ID     json.RawMessage
			Method string
		}
		if err := json.Unmarshal(lines.Bytes(), &m); err != nil || m.ID == nil {
			continue
		}
		result := `{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"slow","version":"1"}}`
		if m.Method == "tools/list" {
			result = `{"tools":` + rawmcp.Tools + `}`
		}
		if m.Method == "tools/call" {
			if err := os.WriteFile(filepath.Join(dir, "arrived"), nil, 0o600); err != nil {
				return 1
			}
			for !fileExists(filepath.Join(dir, "release")) {
				<-time.After(10 * time.Millisecond)
			}
			result = `{"content":[{"type":"text","text":"late"}]}`
		}
		fmt.Printf("{\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":%s}\n", m.ID, result)
	}
	return 0
}

// When the gateway stops, it closes open streams instead of waiting for them to end.
func TestStop_EndsOpenStreams(t *testing.T) {
	t.Parallel()
	p := stack.Start(t, stack.WriteConfig(t, stack.Options{Servers: fmt.Sprintf("  program: {stdio: {command: [%q]}}", gosdk.BuildServer(t)), Policy: openAll}))
	c, heard := gosdk.ConnectInteractive(t, gosdk.StreamingTransport(p.MCP("program")))
	defer c.Close()
	if _, err := c.CallTool(t.Context(), &mcp.CallToolParams{Name: "test_trigger_tool_change"}); err != nil {
		t.Fatal(err)
	}
	if got := <-heard; got != "tools changed" { // the client's stream is open
		t.Fatalf("the client received %q", got)
	}
	begin := time.Now()
	p.Interrupt(t)
	if err := p.Wait(); err != nil {
		t.Errorf("after Ctrl-C the mesh ended with %v\n%s", err, p.Stderr())
	}
	if took := time.Since(begin); took > 20*time.Second { // waiting for the stream would take 30 s
		t.Errorf("the stop took %v", took)
	}
}

const openAll = "version: 1\ndefault: allow\nrules:\n  - {name: all, match: {method: \"*\"}, action: allow}\n"
