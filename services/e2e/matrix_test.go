package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sluice-mesh/sluice/services/e2e/npm"
	"github.com/sluice-mesh/sluice/services/e2e/npmtest"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

// pairing is what a client does with a server: it lists the tools, and calls one of them.
type pairing func(t *testing.T, url, tool string, args map[string]any) (tools []string, text string)

// bySDK does it with the official Go SDK over a transport to a URL.
func bySDK(over func(t *testing.T, url string) mcp.Transport) pairing {
	return func(t *testing.T, url, tool string, args map[string]any) (tools []string, text string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		c, err := mcp.NewClient(&mcp.Implementation{Name: "matrix", Version: "1"}, nil).Connect(ctx, over(t, url), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		for listed, err := range c.Tools(ctx, nil) {
			if err != nil {
				t.Fatal(err)
			}
			tools = append(tools, listed.Name)
		}
		got, err := c.CallTool(ctx, &mcp.CallToolParams{Name: tool, Arguments: args})
		if err != nil {
			t.Fatal(err)
		}
		raw, err := json.Marshal(got)
		if err != nil {
			t.Fatal(err)
		}
		return tools, string(raw)
	}
}

// byTypeScript does it with a version of the official TypeScript SDK.
func byTypeScript(set npm.Set, negotiates bool) pairing {
	return func(t *testing.T, url, tool string, args map[string]any) ([]string, string) {
		t.Helper()
		c := npmtest.NewClient(t, set)
		connect := c.Connect
		if negotiates {
			connect = c.Negotiate
		}
		if reply := connect(url, stack.AgentToken); reply.Error != nil {
			t.Fatal(reply.Error)
		}
		defer c.Close()
		return c.ListTools().ToolNames(t), c.CallTool(npmtest.ToolCall{Name: tool, Arguments: args}).ToolResult(t).Text()
	}
}

// programs reaches an endpoint by a program that speaks over stdio.
func programs(command func(t *testing.T, url string) []string) func(t *testing.T, url string) mcp.Transport {
	return func(t *testing.T, url string) mcp.Transport {
		t.Helper()
		args := command(t, url)
		c := exec.CommandContext(t.Context(), args[0], args[1:]...)
		base, _, _ := strings.Cut(url, "/mcp")
		c.Dir, c.Env = t.TempDir(), []string{"HOME=" + t.TempDir(), "PATH=" + filepath.Dir(npmtest.Node(t)) + ":" + os.Getenv("PATH"), "SLUICE_URL=" + base, "SLUICE_TOKEN=" + stack.AgentToken}
		return &mcp.CommandTransport{Command: c}
	}
}

// webServer starts a program that serves HTTP on the port in PORT, and returns its address.
func webServer(t *testing.T, command []string) string {
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
		_ = server.Process.Kill() // it has nothing to keep
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

// Real clients meet real servers, each of them through the gateway: those that know one era of MCP and
// those that know both, over HTTP and by programs that speak over stdio, at the URL of one server and
// at that of all.
func TestClientsMeetServers(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "a.txt"), []byte("hello"), 0o600); err != nil {
		t.Fatal(err)
	}
	servers := []struct {
		name, entry, tool, want string
		args                    map[string]any
	}{
		{"sessions", fmt.Sprintf("  sessions: {http: {url: %q}}", older(t, everythingServer(t, false))), "test_simple_text", "simple text", nil},
		{"stateless", fmt.Sprintf("  stateless: {http: {url: %q}}", sessionless(t, everythingServer(t, true))), "test_simple_text", "simple text", nil},
		{"web", fmt.Sprintf("  web: {http: {url: %q}}", webServer(t, npmtest.ServerEverything(t, "streamableHttp"))+"/mcp"), "echo", "hello", map[string]any{"message": "hello"}},
		{"sse", fmt.Sprintf("  sse: {http: {url: %q}}", webServer(t, npmtest.ServerEverything(t, "sse"))+"/sse"), "echo", "hello", map[string]any{"message": "hello"}},
		{"program", stdioEntry(t, "program", npmtest.ServerEverything(t, "stdio")), "echo", "hello", map[string]any{"message": "hello"}},
		{"files", stdioEntry(t, "files", npmtest.ServerFilesystem(t, folder)), "read_text_file", "hello", map[string]any{"path": filepath.Join(folder, "a.txt")}},
		{"memory", stdioEntry(t, "memory", npmtest.ServerMemory(t)), "read_graph", "entities", map[string]any{}},
		{"claude-flow", claudeFlowEntry(t), "wasm_agent_list", "agents", map[string]any{}},
	}
	clients := []struct {
		name string
		does pairing
	}{
		{"go-sdk", bySDK(func(_ *testing.T, url string) mcp.Transport { return listening(url) })},
		{"go-sdk, with sessions", bySDK(func(t *testing.T, url string) mcp.Transport { t.Helper(); return listening(older(t, url)) })},
		{"typescript-sdk", byTypeScript(npm.TypeScriptSDK, false)},
		{"typescript-sdk-2", byTypeScript(npm.TypeScriptSDK2, false)},
		{"typescript-sdk-2, without sessions", byTypeScript(npm.TypeScriptSDK2, true)},
		{"inspector", func(t *testing.T, url, tool string, args map[string]any) ([]string, string) {
			t.Helper()
			i := npmtest.NewInspector(t, url, stack.AgentToken)
			return i.ListTools(), i.CallTool(npmtest.ToolCall{Name: tool, Arguments: args}).ToolResult(t).Text()
		}},
		{"ai-sdk", func(t *testing.T, url, tool string, args map[string]any) ([]string, string) {
			t.Helper()
			return npmtest.Library(t, "ai-sdk", url, stack.AgentToken, tool, args)
		}},
		{"langchain", func(t *testing.T, url, tool string, args map[string]any) ([]string, string) {
			t.Helper()
			return npmtest.Library(t, "langchain", url, stack.AgentToken, tool, args)
		}},
		{"mcporter", func(t *testing.T, url, tool string, args map[string]any) ([]string, string) {
			t.Helper()
			return npmtest.Mcporter(t, url, stack.AgentToken, tool, args)
		}},
		{"mcp-remote", bySDK(programs(func(t *testing.T, url string) []string { t.Helper(); return npmtest.Remote(t, url, stack.AgentToken) }))},
		{"sluice stdio", bySDK(programs(func(t *testing.T, url string) []string {
			t.Helper()
			args := []string{stack.Program(t, "sluice"), "stdio"}
			if _, server, one := strings.Cut(url, "/mcp/"); one {
				args = append(args, "--server", server)
			}
			return args
		}))},
	}
	var entries []string
	for _, s := range servers {
		entries = append(entries, strings.TrimRight(s.entry, "\n"))
	}
	s := stack.Up(t, stack.Options{Servers: strings.Join(entries, "\n"), Policy: `version: 1
default: allow
rules:
  - {name: every-method, match: {method: "*"}, action: allow}
`})
	for _, c := range clients {
		t.Run(c.name, func(t *testing.T) {
			for _, server := range servers {
				for name, at := range map[string][2]string{"alone": {s.MCP(server.name), server.tool}, "among all": {allOf(s), server.name + "__" + server.tool}} {
					t.Run(server.name+" "+name, func(t *testing.T) {
						args := server.args
						if args == nil {
							args = map[string]any{}
						}
						tools, text := c.does(t, at[0], at[1], args)
						if !slices.Contains(tools, at[1]) || !strings.Contains(text, server.want) {
							t.Errorf("%d tools are listed, and %s gives %.200s", len(tools), at[1], text)
						}
					})
				}
			}
		})
	}
}
