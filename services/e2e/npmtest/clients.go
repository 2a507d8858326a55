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

// ServerEverything returns the command that starts the official everything server. The transport is `stdio`, `sse` or
// `streamableHttp`. With `sse` or `streamableHttp`, the server listens on the port in the environment variable PORT.
func ServerEverything(t testing.TB, transport string) []string {
	t.Helper()
	return []string{Node(t), Install(t, npm.ServerEverything).Module("@modelcontextprotocol/server-everything/dist/index.js"), transport}
}

// MCPRemote returns the command that starts mcp-remote, which serves the HTTP endpoint at url over stdio.
func MCPRemote(t testing.TB, url, token string) []string {
	t.Helper()
	return []string{Node(t), Install(t, npm.Clients).Module("mcp-remote/dist/proxy.js"), url, "--header", "Authorization: Bearer " + token, "--allow-http", "--transport", "http-only"}
}

// MCPRemoteWithSignIn returns the command that starts mcp-remote without a token. mcp-remote prints the URL at which a
// person signs in. If clientID is empty, mcp-remote registers itself at the authorization server.
func MCPRemoteWithSignIn(t testing.TB, url, clientID string) []string {
	t.Helper()
	out := []string{Node(t), Install(t, npm.Clients).Module("mcp-remote/dist/proxy.js"), url, "--allow-http", "--transport", "http-only"}
	if clientID != "" {
		out = append(out, "--static-oauth-client-info", `{"client_id":"`+clientID+`"}`)
	}
	return out
}

// FeatureUse contains the tool, prompt or resource that a client uses to try an MCP feature.
type FeatureUse struct {
	Name      string         `json:"name,omitzero"`
	URI       string         `json:"uri,omitzero"`
	Arguments map[string]any `json:"arguments,omitzero"`
}

// FeatureResult is the result of a [FeatureUse].
type FeatureResult struct {
	// Listed contains the names or URIs that the client has listed.
	Listed []string `json:"listed"`
	// Text is the text of the result. If there is no result, Error contains the reason.
	Text  string `json:"text"`
	Error string `json:"error"`
}

// Libraries returns the client libraries that the function [Library] supports, each with the set that contains it.
func Libraries() map[string]npm.Set {
	return map[string]npm.Set{
		"typescript-sdk": npm.TypeScriptSDK, "typescript-sdk-2": npm.TypeScriptSDK2, "typescript-sdk-2, without sessions": npm.TypeScriptSDK2,
		"ai-sdk": npm.Clients, "langchain": npm.Clients,
	}
}

// Library makes a client library use MCP features at an endpoint in one session, and returns a result for each feature.
// name is a key of [Libraries]. The library must support all features in tries.
func Library(t testing.TB, name, url, token string, tries map[string]FeatureUse) map[string]FeatureResult {
	t.Helper()
	script, err := npm.ClientsScript()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "clients.mjs")
	if err := os.WriteFile(file, script, 0o600); err != nil {
		t.Fatal(err)
	}
	raw, err := json.Marshal(tries)
	if err != nil {
		t.Fatal(err)
	}
	var out map[string]FeatureResult
	said := output(t, file, string(Install(t, Libraries()[name])), name, url, token, string(raw))
	if err := json.Unmarshal(said, &out); err != nil {
		t.Fatalf("%s printed %s", name, said)
	}
	return out
}

// Mcporter runs the mcporter command for one endpoint. Each method call starts two processes, one after the other.
type Mcporter struct {
	t             testing.TB
	program, file string
}

// NewMcporter returns an Mcporter for the Streamable HTTP endpoint at url, with a bearer token.
func NewMcporter(t testing.TB, url, token string) *Mcporter {
	t.Helper()
	m := &Mcporter{t: t, program: Install(t, npm.Clients).Module("mcporter/dist/cli.js"), file: filepath.Join(t.TempDir(), "mcporter.json")}
	config, err := json.Marshal(map[string]any{"mcpServers": map[string]any{"s": map[string]any{"baseUrl": url, "headers": map[string]string{"Authorization": "Bearer " + token}}}})
	if err == nil {
		err = os.WriteFile(m.file, config, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// Tools lists the tools and calls one of them.
func (m *Mcporter) Tools(try FeatureUse) FeatureResult {
	m.t.Helper()
	args, err := json.Marshal(try.Arguments)
	if err != nil || try.Arguments == nil {
		args = []byte("{}")
	}
	return FeatureResult{
		Listed: members(m.t, m.output("list", "s", "--json"), "tools", "name"),
		Text:   string(m.output("call", "s."+try.Name, "--args", string(args))),
	}
}

// Resources lists the resources and reads one of them.
func (m *Mcporter) Resources(try FeatureUse) FeatureResult {
	m.t.Helper()
	return FeatureResult{
		Listed: members(m.t, m.output("resource", "s", "--json"), "resources", "uri"),
		Text:   string(m.output("resource", "s", try.URI, "--json")),
	}
}

func (m *Mcporter) output(args ...string) jsontext.Value {
	m.t.Helper()
	return output(m.t, append([]string{m.program, "--config", m.file}, args...)...)
}

// ClaudeCode adds an endpoint to Claude Code's servers. It returns the output of `claude mcp list`, which reports
// whether the endpoint is connected. This command needs no login and connects to no other endpoint.
func ClaudeCode(t testing.TB, url, token string) string {
	t.Helper()
	found, err := filepath.Glob(Install(t, npm.ClaudeCode).Module("@anthropic-ai/*/claude"))
	if err != nil || len(found) != 1 {
		t.Fatalf("no Claude Code for this platform: %v, %v", found, err)
	}
	home := t.TempDir()
	run := func(args ...string) string {
		t.Helper()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), replyTimeout)
		defer cancel()
		cmd := exec.CommandContext(ctx, found[0], args...)
		cmd.Dir, cmd.Env = home, []string{"HOME=" + home, "PATH=/usr/bin:/bin", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1", "DISABLE_AUTOUPDATER=1"}
		said, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("claude %v: %v: %s", args[:2], err, said)
		}
		return string(said)
	}
	run("mcp", "add", "--transport", "http", "--scope", "user", "mesh", url, "--header", "Authorization: Bearer "+token)
	return run("mcp", "list")
}

// members returns the values of a string member in all objects of an array. list is the name of the array in raw, and
// member is the name of the string member.
func members(t testing.TB, raw jsontext.Value, list, member string) (all []string) {
	t.Helper()
	var whole map[string]jsontext.Value
	var listed []map[string]jsontext.Value
	err := json.Unmarshal(raw, &whole)
	if err == nil {
		err = json.Unmarshal(whole[list], &listed)
	}
	for _, object := range listed {
		var text string
		if err == nil {
			err = json.Unmarshal(object[member], &text)
		}
		all = append(all, text)
	}
	if err != nil {
		t.Fatalf("%s is not in %s: %v", list, raw, err)
	}
	return all
}

// output runs a Node program and returns its standard output. The test fails if the program fails.
func output(t testing.TB, args ...string) jsontext.Value {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), replyTimeout)
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
