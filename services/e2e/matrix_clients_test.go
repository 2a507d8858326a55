package e2e_test

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sluice-mesh/sluice/services/e2e/npmtest"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

// matrixClient is a client in the matrix of clients and servers.
type matrixClient struct {
	name string
	// lacks lists the features that the client does not support. lacksAmongAll lists those that it does not support at
	// the URL for all servers.
	lacks, lacksAmongAll []string
	// lacksAt lists further features that the client does not support, by the server's name.
	lacksAt map[string][]string
	// does uses the features in tries at an endpoint and returns their results.
	does func(t *testing.T, url, token string, tries map[string]npmtest.Try) map[string]npmtest.Did
}

func matrixClients() []matrixClient {
	// Clients that start a process for each request are tested only with tools at the URL for all servers. Their other
	// features are tested at the URLs of single servers.
	noTools := slices.DeleteFunc(features(), func(f string) bool { return f == mcpTools })
	inspector := []string{mcpCompletion, mcpSampling, mcpElicitation, mcpSubscriptions, mcpProgress, mcpCancellation}
	mcporter := append([]string{mcpPrompts}, inspector...)
	aiSDK := []string{mcpSampling, mcpSubscriptions, mcpProgress}
	langchain := []string{mcpPrompts, mcpCompletion, mcpSampling, mcpElicitation, mcpSubscriptions, mcpCancellation} // it stops waiting for a call without notifying the server
	return []matrixClient{
		{"go-sdk", nil, nil, nil, bySDK(bearing)},
		{"go-sdk, with sessions", nil, nil, nil, bySDK(func(t *testing.T, url, token string) mcp.Transport {
			t.Helper()
			return bearing(t, older(t, url), token)
		})},
		{"typescript-sdk", nil, nil, nil, byLibrary("typescript-sdk")},
		{"typescript-sdk-2", nil, nil, nil, byLibrary("typescript-sdk-2")},
		{"typescript-sdk-2, without sessions", nil, nil, nil, byLibrary("typescript-sdk-2, without sessions")},
		{"inspector", inspector, noTools, nil, func(t *testing.T, url, token string, tries map[string]npmtest.Try) map[string]npmtest.Did {
			t.Helper()
			i := npmtest.NewInspector(t, url, token)
			return each(tries, map[string]func(npmtest.Try) npmtest.Did{mcpTools: i.Tools, mcpResources: i.Resources, mcpPrompts: i.Prompts})
		}},
		{"ai-sdk", aiSDK, aiSDK, nil, byLibrary("ai-sdk")},
		{"langchain", langchain, langchain, nil, byLibrary("langchain")},
		{"mcporter", mcporter, noTools, nil, func(t *testing.T, url, token string, tries map[string]npmtest.Try) map[string]npmtest.Did {
			t.Helper()
			m := npmtest.NewMcporter(t, url, token)
			return each(tries, map[string]func(npmtest.Try) npmtest.Did{mcpTools: m.Tools, mcpResources: m.Resources})
		}},
		// mcp-remote opens a second session next to the session of its client, and ends neither. A process with two
		// sessions of a caller sends its requests and its notifications of changes to neither.
		{"mcp-remote", nil, []string{mcpSubscriptions}, map[string][]string{"program": {mcpSampling, mcpElicitation, mcpSubscriptions}, "memory": {mcpSubscriptions}}, bySDK(programs(func(t *testing.T, url, token string) []string { t.Helper(); return npmtest.Remote(t, url, token) }))},
		{"sluice stdio", nil, nil, nil, bySDK(programs(sluiceStdio))},
	}
}

// each uses the features one after the other.
func each(tries map[string]npmtest.Try, can map[string]func(npmtest.Try) npmtest.Did) map[string]npmtest.Did {
	did := make(map[string]npmtest.Did, len(tries))
	for feature, try := range tries {
		did[feature] = can[feature](try)
	}
	return did
}

// byLibrary returns a function that uses the features with one of [npmtest.Libraries].
func byLibrary(name string) func(t *testing.T, url, token string, tries map[string]npmtest.Try) map[string]npmtest.Did {
	return func(t *testing.T, url, token string, tries map[string]npmtest.Try) map[string]npmtest.Did {
		t.Helper()
		return npmtest.Library(t, name, url, token, tries)
	}
}

// bearing returns an HTTP transport to an endpoint that sends a token.
func bearing(_ *testing.T, url, token string) mcp.Transport {
	return &mcp.StreamableClientTransport{Endpoint: url, HTTPClient: &http.Client{Transport: bearer{token}}}
}

// programs returns a transport through a program that serves an endpoint over stdio.
func programs(command func(t *testing.T, url, token string) []string) func(t *testing.T, url, token string) mcp.Transport {
	return func(t *testing.T, url, token string) mcp.Transport {
		t.Helper()
		args := command(t, url, token)
		c := exec.CommandContext(t.Context(), args[0], args[1:]...)
		base, _, _ := strings.Cut(url, "/mcp")
		c.Dir, c.Env = t.TempDir(), []string{"HOME=" + t.TempDir(), "PATH=" + filepath.Dir(npmtest.Node(t)) + ":" + os.Getenv("PATH"), "SLUICE_URL=" + base, "SLUICE_TOKEN=" + token}
		return &mcp.CommandTransport{Command: c}
	}
}

// sluiceStdio returns the command of `sluice stdio` for an endpoint.
func sluiceStdio(t *testing.T, url, _ string) []string {
	t.Helper()
	args := []string{stack.Program(t, "sluice"), "stdio"}
	if _, server, one := strings.Cut(url, "/mcp/"); one {
		args = append(args, "--server", server)
	}
	return args
}

// Checks that Claude Code connects to the mesh, and that it reports an invalid token. Claude Code is not part of the
// matrix, because its sessions need a login.
func TestClaudeCodeConnects(t *testing.T) {
	t.Parallel()
	s := stack.Up(t, stack.Options{Servers: stdioEntry(t, "memory", npmtest.ServerMemory(t)), Policy: openPolicy})
	for _, url := range []string{s.MCP("memory"), allOf(s)} {
		if said := npmtest.ClaudeCode(t, url, stack.AgentToken); !strings.Contains(said, "Connected") {
			t.Errorf("%s: Claude Code prints %s", url, said)
		}
	}
	if said := npmtest.ClaudeCode(t, s.MCP("memory"), "nobody's"); strings.Contains(said, "Connected") || !strings.Contains(said, "401") {
		t.Errorf("with an invalid token Claude Code prints %s", said)
	}
}
