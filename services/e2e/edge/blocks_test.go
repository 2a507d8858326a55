package edge_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/e2e/rawmcp"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
)

// An operator blocks a caller. When the command has ended, the caller's session is refused with 401 and a message that
// says why, no call reaches the server, and other callers are not affected. When the block has ended, the caller can
// call again with the same credential.
func TestBlocks_BlockedCallerIsRefusedUntilTheBlockEnds(t *testing.T) {
	t.Parallel()
	p := startProvider(t)
	server := rawmcp.Start(t, rawmcp.Tools)
	mesh := stack.Start(t, stack.WriteConfig(t, stack.Options{
		Servers: fmt.Sprintf("  raw: {http: {url: %q}}", server.URL), Policy: stack.OpenPolicy, Listen: stack.FreeAddr(t), GRPC: stack.FreeAddr(t),
		Tokens: fmt.Sprintf("  issuers:\n    - {name: corp, issuer: %q, owner: subject, delegation: act}\n", p.URL),
		Extra:  "public_url: https://mcp.example.com\n",
	}))
	awaitKeys(t, mesh)
	created := func(args ...string) string {
		ran := operate(t, mesh, append([]string{"token", "create", "-o", "json"}, args...)...)
		if ran.Code != 0 {
			t.Fatalf("token create: exit code %d: %s", ran.Code, ran.Stderr)
		}
		return stack.DecodeOutput[createdToken](t, ran).Secret
	}
	jwt := func(changes map[string]any) string { return p.token("first", changes) }
	bystander := stack.Connect(t, mesh.MCP("raw"), jwt(map[string]any{"sub": "zoe", "client_id": "other"}))
	for _, c := range []struct {
		name, credential string
		target           []string
	}{
		{"a created token", created("cursor", "--owner", "carl", "--subject", "cursor-1"), []string{"cursor-1"}},
		{"a token whose owner is blocked", created("claude", "--owner", "corp/dana"), []string{"corp/dana"}},
		{"a JWT whose subject is blocked", jwt(nil), []string{"corp/ana"}},
		{"a JWT whose client is blocked", jwt(map[string]any{"sub": "ben"}), []string{"--client", "assistant"}},
		{"an agent that acts for a blocked person", jwt(map[string]any{"sub": "eve", "act": map[string]any{"sub": "bot"}}), []string{"corp/eve"}},
		{"an agent that is blocked, for each person", jwt(map[string]any{"sub": "fay", "act": map[string]any{"sub": "bot"}}), []string{"corp/bot"}},
		{"an agent that is blocked for one person", jwt(map[string]any{"sub": "gil", "act": map[string]any{"sub": "bot"}}), []string{"act:corp/bot/corp/gil"}},
		{"a prior actor that is blocked", jwt(map[string]any{"sub": "hal", "act": map[string]any{"sub": "bot", "act": map[string]any{"sub": "planner"}}}), []string{"corp/planner"}},
	} {
		client := stack.Connect(t, mesh.MCP("raw"), c.credential)
		if got := client.Call("safe", "{}"); got.Status != http.StatusOK || got.IsError(t) {
			t.Errorf("%s: before the block: %d %s", c.name, got.Status, got.Body)
		}
		server.DropRequests()
		ran := operate(t, mesh, append([]string{"identity", "block", "--reason", "test"}, c.target...)...)
		stack.CheckCommand(t, ran, 0, ran.Stdout, "blocked: ")
		for _, caller := range []*stack.Client{client, stack.NewClient(t, mesh.MCP("raw"), c.credential)} {
			got := caller.Call("safe", "{}")
			challenge := got.Header.Get("WWW-Authenticate")
			if got.Status != http.StatusUnauthorized || !strings.Contains(string(got.Body), "blocked this caller") || !strings.Contains(challenge, `error="invalid_token"`) || !strings.Contains(challenge, "blocked") {
				t.Errorf("%s: %d %s %s", c.name, got.Status, challenge, got.Body)
			}
		}
		if n := len(server.Requests()); n != 0 {
			t.Errorf("%s: the server has received %d requests of the blocked caller", c.name, n)
		}
		if got := bystander.Call("safe", "{}"); got.Status != http.StatusOK || got.IsError(t) {
			t.Errorf("%s: another caller: %d %s", c.name, got.Status, got.Body)
		}
		ran = operate(t, mesh, append([]string{"identity", "unblock"}, c.target...)...)
		stack.CheckCommand(t, ran, 0, ran.Stdout, "unblocked: ")
		eventually.Holds(t, c.name+": the caller can call again", func() bool {
			got := stack.NewClient(t, mesh.MCP("raw"), c.credential)
			if got.Open() != nil {
				return false
			}
			resp := got.Call("safe", "{}")
			return resp.Status == http.StatusOK && !resp.IsError(t)
		})
	}
}
