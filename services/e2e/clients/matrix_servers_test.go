package clients_test

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/e2e/gosdk"
	"github.com/sluice-mesh/sluice/services/e2e/npmtest"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

// matrixServer is a server in the matrix: its entry in the configuration, and its features.
type matrixServer struct {
	name, entry string
	// tries contains a use of each feature of the server.
	tries map[string]matrixTry
	// onlyAtOwnURL lists the features that are tested only at the server's own URL. Either the server has the feature
	// only there, or the matrix limits the test to that URL.
	onlyAtOwnURL []string
}

func matrixServers(t *testing.T) []matrixServer {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "a.txt")
	if err := os.WriteFile(file, []byte("hello"), 0o600); err != nil {
		t.Fatal(err)
	}
	// Some tools have definitions that depend on the client's capabilities, so the definitions are not pinned.
	unpinned := func(entry string) string { return strings.Replace(entry, "{", `{pin: "off", `, 1) }
	// By default the memory server writes to the directory of its program. The sandbox makes that directory read-only,
	// so the configuration sets another path.
	memory := strings.Replace(stack.StdioEntry(t, "memory", npmtest.ServerMemory(t)), "{command", fmt.Sprintf("{env: {MEMORY_FILE_PATH: %q}, command", filepath.Join(dir, "memory.jsonl")), 1)
	slow := []string{mcpSubscriptions} // the resource changes only every 3 s, so the test waits for it only once
	conditional := []string{mcpSampling, mcpElicitation}
	return []matrixServer{
		{"sessions", fmt.Sprintf("  sessions: {http: {url: %q}}", gosdk.SessionsOnlyProxy(t, gosdk.StartServer(t, false))), officialTries("test_sampling", "test_elicitation"), slow},
		{"stateless", fmt.Sprintf("  stateless: {http: {url: %q}}", gosdk.SessionlessOnlyProxy(t, gosdk.StartServer(t, true))), officialTries("test_input_required_result_sampling", "test_input_required_result_elicitation"), slow},
		{"web", unpinned(fmt.Sprintf("  web: {http: {url: %q}}", startWebServer(t, npmtest.ServerEverything(t, "streamableHttp"))+"/mcp")), everythingTries(), conditional},
		{"sse", unpinned(fmt.Sprintf("  sse: {http: {url: %q}}", startWebServer(t, npmtest.ServerEverything(t, "sse"))+"/sse")), everythingTries(), conditional},
		{"program", unpinned(stack.StdioEntry(t, "program", npmtest.ServerEverything(t, "stdio"))), everythingTries(), conditional},
		{"files", stack.StdioEntry(t, "files", npmtest.ServerFilesystem(t, dir)), map[string]matrixTry{
			mcpTools: {npmtest.FeatureUse{Name: "read_text_file", Arguments: map[string]any{"path": file}}, "hello"},
		}, nil},
		{"memory", memory, map[string]matrixTry{
			mcpTools:         {npmtest.FeatureUse{Name: "read_graph"}, "entities"},
			mcpResources:     {npmtest.FeatureUse{URI: "memory://knowledge-graph"}, "entities"},
			mcpSubscriptions: {npmtest.FeatureUse{URI: "memory://knowledge-graph", Name: "create_entities", Arguments: map[string]any{"entities": []any{map[string]any{"name": "ana", "entityType": "person", "observations": []any{"likes tea"}}}}}, ""},
		}, nil},
		// Claude Flow declares resources, but does not implement the method that lists them.
		{"claude-flow", stack.ClaudeFlowEntry(t), map[string]matrixTry{mcpTools: {npmtest.FeatureUse{Name: "wasm_agent_list"}, "agents"}}, nil},
	}
}

// officialTries returns a use of each feature of the official Go SDK's server. The tools that make requests to the
// client differ between servers that use sessions and stateless servers. The server has no tool that runs long enough
// to be cancelled.
func officialTries(samples, elicits string) map[string]matrixTry {
	return map[string]matrixTry{
		mcpTools:         {npmtest.FeatureUse{Name: "test_simple_text"}, "simple text"},
		mcpResources:     {npmtest.FeatureUse{URI: "test://static-text"}, "content of the static text resource"},
		mcpPrompts:       {npmtest.FeatureUse{Name: "test_simple_prompt"}, "This is a simple prompt"},
		mcpCompletion:    {npmtest.FeatureUse{Name: "test_prompt_with_arguments", Arguments: map[string]any{"arg1": "x"}}, `"values":[]`},
		mcpSampling:      {npmtest.FeatureUse{Name: samples, Arguments: map[string]any{"prompt": "hello"}}, "re: "},
		mcpElicitation:   {npmtest.FeatureUse{Name: elicits, Arguments: map[string]any{"message": "who?"}}, "ana"},
		mcpSubscriptions: {npmtest.FeatureUse{URI: "test://watched-resource"}, ""}, // the resource changes without a call
		mcpProgress:      {npmtest.FeatureUse{Name: "test_tool_with_progress"}, "3 steps, rising"},
	}
}

// everythingTries returns a use of each feature of the official everything server.
func everythingTries() map[string]matrixTry {
	const slow = "trigger-long-running-operation"
	return map[string]matrixTry{
		mcpTools:         {npmtest.FeatureUse{Name: "echo", Arguments: map[string]any{"message": "hello"}}, "hello"},
		mcpResources:     {npmtest.FeatureUse{URI: "demo://resource/static/document/features.md"}, "Everything Server"},
		mcpPrompts:       {npmtest.FeatureUse{Name: "simple-prompt"}, "This is a simple prompt"},
		mcpCompletion:    {npmtest.FeatureUse{Name: "completable-prompt", Arguments: map[string]any{"department": "S"}}, `"Sales","Support"`},
		mcpSampling:      {npmtest.FeatureUse{Name: "trigger-sampling-request", Arguments: map[string]any{"prompt": "hello"}}, "re: "},
		mcpElicitation:   {npmtest.FeatureUse{Name: "trigger-elicitation-request"}, "ana"},
		mcpSubscriptions: {npmtest.FeatureUse{URI: "demo://resource/dynamic/text/1", Name: "toggle-subscriber-updates"}, ""},
		mcpProgress:      {npmtest.FeatureUse{Name: slow, Arguments: map[string]any{"duration": 0.3, "steps": 3}}, "3 steps, rising"},
		mcpCancellation:  {npmtest.FeatureUse{Name: slow, Arguments: map[string]any{"duration": 50, "steps": 2}}, ""},
	}
}

// startWebServer starts a program that listens on the port in the environment variable PORT, and returns its URL.
func startWebServer(t *testing.T, command []string) string {
	t.Helper()
	addr := stack.FreeAddr(t)
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	server := exec.Command(command[0], command[1:]...)
	server.Dir, server.Env = t.TempDir(), []string{"PORT=" + port, "HOME=" + t.TempDir(), "PATH=" + filepath.Dir(command[0])}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = server.Process.Kill() // the server has no state to save
		_ = server.Wait()
	})
	for range 1200 {
		if conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", addr); err == nil {
			_ = conn.Close()
			return "http://" + addr
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Fatal("the server does not listen")
	return ""
}
