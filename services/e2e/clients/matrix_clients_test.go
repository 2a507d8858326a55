package clients_test

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sluice-mesh/sluice/services/e2e/gosdk"
	"github.com/sluice-mesh/sluice/services/e2e/npmtest"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

type matrixClient struct {
	name string
	// lacks lists the features that the client does not support. lacksAmongAll lists the features that the client does
	// not support at the URL that serves all servers.
	lacks, lacksAmongAll []string
	// lacksAt lists, for each server name, further features that the client does not support.
	lacksAt map[string][]string
	// The function use uses the features in the map tries at an endpoint and returns the result for each feature.
	use func(t *testing.T, url, token string, tries map[string]npmtest.FeatureUse) map[string]npmtest.FeatureResult
}

func matrixClients() []matrixClient {
	// Some clients start a process for each request. At the URL for all servers they are tested only with tools. Their
	// other features are tested at the URLs for single servers.
	noTools := slices.DeleteFunc(features(), func(f string) bool { return f == mcpTools })
	inspector := []string{mcpCompletion, mcpSampling, mcpElicitation, mcpSubscriptions, mcpProgress, mcpCancellation}
	mcporter := append([]string{mcpPrompts}, inspector...)
	aiSDK := []string{mcpSampling, mcpSubscriptions, mcpProgress}
	langchain := []string{mcpPrompts, mcpCompletion, mcpSampling, mcpElicitation, mcpSubscriptions, mcpCancellation} // this client does not notify the server when it stops waiting for a call
	return []matrixClient{
		{"go-sdk", nil, nil, nil, useSDK(bearerTransport)},
		{"go-sdk, with sessions", nil, nil, nil, useSDK(func(t *testing.T, url, token string) mcp.Transport {
			t.Helper()
			return bearerTransport(t, gosdk.SessionsOnlyProxy(t, url), token)
		})},
		{"typescript-sdk", nil, nil, nil, useLibrary("typescript-sdk")},
		{"typescript-sdk-2", nil, nil, nil, useLibrary("typescript-sdk-2")},
		{"typescript-sdk-2, without sessions", nil, nil, nil, useLibrary("typescript-sdk-2, without sessions")},
		{"inspector", inspector, noTools, nil, func(t *testing.T, url, token string, tries map[string]npmtest.FeatureUse) map[string]npmtest.FeatureResult {
			t.Helper()
			i := npmtest.NewInspector(t, url, token)
			return useEach(tries, map[string]func(npmtest.FeatureUse) npmtest.FeatureResult{mcpTools: i.Tools, mcpResources: i.Resources, mcpPrompts: i.Prompts})
		}},
		{"ai-sdk", aiSDK, aiSDK, nil, useLibrary("ai-sdk")},
		{"langchain", langchain, langchain, nil, useLibrary("langchain")},
		{"mcporter", mcporter, noTools, nil, func(t *testing.T, url, token string, tries map[string]npmtest.FeatureUse) map[string]npmtest.FeatureResult {
			t.Helper()
			m := npmtest.NewMcporter(t, url, token)
			return useEach(tries, map[string]func(npmtest.FeatureUse) npmtest.FeatureResult{mcpTools: m.Tools, mcpResources: m.Resources})
		}},
		// mcp-remote opens a second session in addition to its client's session, and does not end either of them. If a
		// caller has two sessions, neither session receives the requests and change notifications of stdio servers.
		{"mcp-remote", nil, []string{mcpSubscriptions}, map[string][]string{"program": {mcpSampling, mcpElicitation, mcpSubscriptions}, "memory": {mcpSubscriptions}}, useSDK(programTransport(func(t *testing.T, url, token string) []string { t.Helper(); return npmtest.MCPRemote(t, url, token) }))},
		{"sluice stdio", nil, nil, nil, useSDK(programTransport(sluiceStdioCommand))},
	}
}

// useEach uses the features one after the other.
func useEach(tries map[string]npmtest.FeatureUse, can map[string]func(npmtest.FeatureUse) npmtest.FeatureResult) map[string]npmtest.FeatureResult {
	did := make(map[string]npmtest.FeatureResult, len(tries))
	for feature, try := range tries {
		did[feature] = can[feature](try)
	}
	return did
}

// useLibrary returns a function that uses the features with the library that has the given name, which is one of
// [npmtest.Libraries].
func useLibrary(name string) func(t *testing.T, url, token string, tries map[string]npmtest.FeatureUse) map[string]npmtest.FeatureResult {
	return func(t *testing.T, url, token string, tries map[string]npmtest.FeatureUse) map[string]npmtest.FeatureResult {
		t.Helper()
		return npmtest.Library(t, name, url, token, tries)
	}
}

// bearerTransport returns an HTTP transport that connects to an endpoint and sends a token.
func bearerTransport(_ *testing.T, url, token string) mcp.Transport {
	return &mcp.StreamableClientTransport{Endpoint: url, HTTPClient: &http.Client{Transport: gosdk.Bearer{Token: token}}}
}

// programTransport returns a transport that starts a program, which connects to an endpoint and serves it over stdio.
func programTransport(command func(t *testing.T, url, token string) []string) func(t *testing.T, url, token string) mcp.Transport {
	return func(t *testing.T, url, token string) mcp.Transport {
		t.Helper()
		args := command(t, url, token)
		c := exec.CommandContext(t.Context(), args[0], args[1:]...)
		base, _, _ := strings.Cut(url, "/mcp")
		c.Dir, c.Env = t.TempDir(), []string{"HOME=" + t.TempDir(), "PATH=" + filepath.Dir(npmtest.Node(t)) + ":" + os.Getenv("PATH"), "SLUICE_URL=" + base, "SLUICE_TOKEN=" + token}
		return &mcp.CommandTransport{Command: c}
	}
}

func sluiceStdioCommand(t *testing.T, url, _ string) []string {
	t.Helper()
	args := []string{stack.Program(t, "sluice"), "stdio"}
	if _, server, one := strings.Cut(url, "/mcp/"); one {
		args = append(args, "--server", server)
	}
	return args
}

// Claude Code connects to the mesh. With an invalid token, it reports that the token is invalid. Claude Code is not
// part of the matrix, because its sessions need a login.
func TestClaudeCode_Connects(t *testing.T) {
	t.Parallel()
	s := stack.StartInProcess(t, stack.Options{Servers: stack.StdioEntry(t, "memory", npmtest.ServerMemory(t)), Policy: stack.OpenPolicy})
	for _, url := range []string{s.MCP("memory"), s.AllServers()} {
		if said := npmtest.ClaudeCode(t, url, stack.AgentToken); !strings.Contains(said, "Connected") {
			t.Errorf("%s: Claude Code prints %s", url, said)
		}
	}
	if said := npmtest.ClaudeCode(t, s.MCP("memory"), "nobody's"); strings.Contains(said, "Connected") || !strings.Contains(said, "401") {
		t.Errorf("with an invalid token Claude Code prints %s", said)
	}
}
