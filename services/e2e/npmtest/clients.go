package npmtest

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/sluice-mesh/sluice/services/e2e/npm"
)

// ServerEverything returns the command that starts the official everything server over a transport:
// `stdio`, or `sse` or `streamableHttp` on the port in the environment variable PORT.
func ServerEverything(t testing.TB, transport string) []string {
	t.Helper()
	return []string{Node(t), Install(t, npm.ServerEverything).Module("@modelcontextprotocol/server-everything/dist/index.js"), transport}
}

// Remote returns the command of mcp-remote, which speaks over stdio what an endpoint does over HTTP.
func Remote(t testing.TB, url, token string) []string {
	t.Helper()
	return []string{Node(t), Install(t, npm.Clients).Module("mcp-remote/dist/proxy.js"), url, "--header", "Authorization: Bearer " + token, "--allow-http", "--transport", "http-only"}
}

// Library is a library that speaks MCP, of the set [npm.Clients]: `ai-sdk` or `langchain`. It lists the
// tools at an endpoint, and calls one of them.
func Library(t testing.TB, name, url, token, tool string, args any) (tools []string, text string) {
	t.Helper()
	script, err := npm.ClientsScript()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "clients.mjs")
	if err := os.WriteFile(file, script, 0o600); err != nil {
		t.Fatal(err)
	}
	raw, err := json.Marshal(args)
	if err != nil {
		t.Fatal(err)
	}
	var out struct {
		Tools []string `json:"tools"`
		Text  string   `json:"text"`
	}
	said := output(t, file, string(Install(t, npm.Clients)), name, url, token, tool, string(raw))
	if err := json.Unmarshal(said, &out); err != nil {
		t.Fatalf("%s printed %s", name, said)
	}
	return out.Tools, out.Text
}

// Mcporter lists the tools at an endpoint, and calls one of them, by mcporter's command line.
func Mcporter(t testing.TB, url, token, tool string, args any) (tools []string, text string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "mcporter.json")
	config, err := json.Marshal(map[string]any{"mcpServers": map[string]any{"s": map[string]any{"baseUrl": url, "headers": map[string]string{"Authorization": "Bearer " + token}}}})
	if err == nil {
		err = os.WriteFile(file, config, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	program := Install(t, npm.Clients).Module("mcporter/dist/cli.js")
	var list struct {
		Tools []struct {
			Name string `json:"name"`
		} `json:"tools"`
	}
	said := output(t, program, "--config", file, "list", "s", "--json")
	if err := json.Unmarshal(said, &list); err != nil {
		t.Fatalf("mcporter printed %s", said)
	}
	for _, tool := range list.Tools {
		tools = append(tools, tool.Name)
	}
	raw, err := json.Marshal(args)
	if err != nil {
		t.Fatal(err)
	}
	return tools, string(output(t, program, "--config", file, "call", "s."+tool, "--args", string(raw)))
}

// ListTools sends `tools/list`, as the inspector's command line does, and returns the names.
func (i *Inspector) ListTools() []string {
	i.t.Helper()
	said := output(i.t, i.cli, "--cli", "--server-url", i.url, "--transport", "http", "--header", "Authorization: Bearer "+i.token, "--method", "tools/list", "--format", "json", "--stored-auth-only")
	var answer struct {
		Result struct {
			Tools []struct {
				Name string `json:"name"`
			} `json:"tools"`
		} `json:"result"`
	}
	if err := json.Unmarshal(said, &answer); err != nil {
		i.t.Fatalf("the inspector printed %s", said)
	}
	var names []string
	for _, tool := range answer.Result.Tools {
		names = append(names, tool.Name)
	}
	return names
}

// output is what a program for Node prints. The test fails where it fails.
func output(t testing.TB, args ...string) jsontext.Value {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
	defer cancel()
	node, home := Node(t), t.TempDir()
	cmd := exec.CommandContext(ctx, node, args...)
	cmd.Dir, cmd.Env = home, []string{"HOME=" + home, "PATH=" + filepath.Dir(node)}
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s: %v: %s%s", filepath.Base(args[0]), err, out.Bytes(), said.Bytes())
	}
	return out.Bytes()
}
