package clients_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
	"github.com/sluice-mesh/sluice/services/e2e/gosdk"
	"github.com/sluice-mesh/sluice/services/e2e/npmtest"
	"github.com/sluice-mesh/sluice/services/e2e/rawmcp"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

// hubPolicy allows all methods on two servers, only calls on some other servers, and no method on the server named
// closed.
const hubPolicy = `version: 1
default: deny
rules:
  - {name: nothing, match: {server: closed}, action: deny}
  - {name: calls, match: {server: [web, program, dotted, down, twin]}, action: allow}
  - {name: rest, match: {method: "*", server: [web, program]}, action: allow}
`

// startHub starts a mesh with servers of different kinds, one of which is unavailable.
func startHub(t *testing.T) (s *stack.Stack, dotted *rawmcp.Server) {
	t.Helper()
	program := gosdk.BuildServer(t)
	dotted = rawmcp.Start(t, `[{"name":"create.issue","inputSchema":{"type":"object"}},{"name":"same","inputSchema":{"type":"object"}}]`)
	twin := rawmcp.Start(t, `[{"name":"same","inputSchema":{"type":"object"}},{"name":"a.b","inputSchema":{"type":"object"}},{"name":"a_b_2e7336dc","inputSchema":{"type":"object"}}]`)
	return stack.StartInProcess(t, stack.Options{
		Policy: hubPolicy,
		Servers: fmt.Sprintf(`  web: {http: {url: %q}}
  program: {stdio: {command: [%q]}}
  closed: {stdio: {command: [%q]}}
  dotted: {http: {url: %q}}
  twin: {http: {url: %q}}
  down: {http: {url: "http://127.0.0.1:1/mcp"}}`, gosdk.StartServer(t, false), program, program, dotted.URL, twin.URL),
	}), dotted
}

// Case T2. One URL serves all servers. At this URL, the names of tools, prompts and resources contain the server's
// name. The gateway also passes on the servers' requests and notifications. No two tools have the same name.
func TestAllServers_OneURLServesThem(t *testing.T) {
	t.Parallel()
	for name, over := range map[string]func(*testing.T, *stack.Stack) mcp.Transport{
		"over HTTP": func(_ *testing.T, s *stack.Stack) mcp.Transport { return gosdk.StreamingTransport(s.AllServers()) }, // without a session
		"in a session": func(t *testing.T, s *stack.Stack) mcp.Transport {
			t.Helper()
			return gosdk.StreamingTransport(gosdk.SessionsOnlyProxy(t, s.AllServers()))
		},
		"by a program": func(t *testing.T, s *stack.Stack) mcp.Transport { t.Helper(); return gosdk.StdioTransport(t, s, "") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, dotted := startHub(t)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			c, heard := gosdk.ConnectInteractive(t, over(t, s))
			defer func() {
				if err := c.Close(); err != nil {
					t.Errorf("end the session: %v", err)
				}
			}()
			if got := c.InitializeResult(); got.ServerInfo.Name != "sluice" || got.ServerInfo.Version == "" || !strings.Contains(got.Instructions, "<server>__<name>") {
				t.Errorf("the initialize result is %+v", got)
			}
			tools, err := c.ListTools(ctx, nil)
			if err != nil {
				t.Fatal(err)
			}
			var names []string
			for _, tool := range tools.Tools {
				names = append(names, tool.Name)
			}
			for _, want := range []string{"web__test_sampling", "program__test_sampling", "dotted__create_issue_152d8b45", "dotted__same", "twin__same"} {
				if !slices.Contains(names, want) {
					t.Errorf("%s is not listed among %v", want, names)
				}
			}
			for _, name := range names {
				if server, _, _ := strings.Cut(name, "__"); server == "closed" || strings.HasPrefix(name, "twin__a") {
					t.Errorf("%s is listed", name)
				}
			}
			if raw, _ := json.Marshal(tools.Meta["dev.sluice/unavailable"]); string(raw) != `[{"code":"upstream_unavailable","server":"down"}]` {
				t.Errorf("the unavailable servers are %s", raw)
			}
			call := func(tool string, args map[string]any) string {
				t.Helper()
				r, err := c.CallTool(ctx, &mcp.CallToolParams{Name: tool, Arguments: args})
				if err != nil {
					t.Fatalf("call %s: %v", tool, err)
				}
				raw, _ := json.Marshal(r.Content)
				return string(raw)
			}
			for _, server := range []string{"web", "program"} {
				if got := call(server+"__test_sampling", map[string]any{"prompt": "hello"}); !strings.Contains(got, "re: hello") {
					t.Errorf("%s sampled %s", server, got)
				}
				if got := call(server+"__test_elicitation", map[string]any{"message": "who?"}); !strings.Contains(got, "ana") || !awaitNotification(ctx, heard, "asked "+server+" asks: who?") {
					t.Errorf("%s elicited %s", server, got)
				}
				if got := call(server+"__test_embedded_resource", nil); !strings.Contains(got, `"uri":"mcp.`+server+`+test://`) {
					t.Errorf("%s embeds %s", server, got)
				}
			}
			call("dotted__create_issue_152d8b45", nil)
			if got := dotted.Calls("create.issue"); len(got) != 1 {
				t.Errorf("%d calls arrived by the alias", len(got))
			}
			for _, nobody := range []string{"create_note", "nowhere__x", "twin__a_b_2e7336dc", "closed__test_simple_text", "web__nothing"} {
				r, err := c.CallTool(ctx, &mcp.CallToolParams{Name: nobody})
				if err != nil || !r.IsError {
					t.Errorf("%s gave %+v, %v", nobody, r, err)
				}
			}

			prompts, err := c.ListPrompts(ctx, nil)
			if err != nil || !slices.ContainsFunc(prompts.Prompts, func(p *mcp.Prompt) bool { return p.Name == "web__test_simple_prompt" }) ||
				!slices.ContainsFunc(prompts.Prompts, func(p *mcp.Prompt) bool { return p.Name == "program__test_simple_prompt" }) {
				t.Errorf("prompts: %+v, %v", prompts, err)
			}
			if got, err := c.GetPrompt(ctx, &mcp.GetPromptParams{Name: "program__test_simple_prompt"}); err != nil || len(got.Messages) == 0 {
				t.Errorf("a prompt: %+v, %v", got, err)
			}
			resources, err := c.ListResources(ctx, nil)
			if err != nil {
				t.Fatal(err)
			}
			read := make(map[string]bool)
			for _, r := range resources.Resources {
				got, err := c.ReadResource(ctx, &mcp.ReadResourceParams{URI: r.URI})
				if err != nil || len(got.Contents) == 0 || got.Contents[0].URI != r.URI {
					t.Errorf("%s: %+v, %v", r.URI, got, err)
				}
				server, _, _ := strings.Cut(strings.TrimPrefix(r.URI, "mcp."), "+")
				read[server] = true
			}
			if diff := cmp.Diff(map[string]bool{"web": true, "program": true}, read); diff != "" {
				t.Errorf("servers whose resources were read (-want +got):\n%s", diff)
			}
			templates, err := c.ListResourceTemplates(ctx, nil)
			if err != nil || !slices.ContainsFunc(templates.ResourceTemplates, func(r *mcp.ResourceTemplate) bool { return strings.HasPrefix(r.URITemplate, "mcp.web+test://") }) {
				t.Errorf("templates: %+v, %v", templates, err)
			}
			if _, err := c.Complete(ctx, &mcp.CompleteParams{
				Ref: &mcp.CompleteReference{Type: "ref/prompt", Name: "web__test_prompt_with_arguments"}, Argument: mcp.CompleteParamsArgument{Name: "arg1", Value: "x"},
			}); err != nil {
				t.Errorf("a completion: %v", err)
			}

			call("web__test_trigger_tool_change", nil) // the gateway lists the tools again and notifies the client
			call("program__test_trigger_prompt_change", nil)
			for want := map[string]bool{"tools changed": true, "prompts changed": true}; len(want) > 0; {
				select {
				case got := <-heard:
					delete(want, got)
				case <-ctx.Done():
					t.Fatalf("the client did not receive %v", want)
				}
			}
			told := make(map[string]bool)
			for _, r := range stack.ListRecords(ctx, t, gatewayv1.NewGatewayServiceClient(s.Operator(t))) {
				told[fmt.Sprintf("%s %s %s", r.GetServer(), r.GetMethod(), r.GetTool())] = true
				if r.GetServer() == "closed" && r.GetKind() == gatewayv1.RecordKind_RECORD_KIND_INTENT {
					t.Errorf("the journal has the intent of a call that policy denies: %v", r)
				}
			}
			for _, want := range []string{"web tools/call test_sampling", "dotted tools/call create.issue", "program sampling/createMessage ", "web resources/read test://static-text", "closed tools/call test_simple_text", " tools/call create_note"} {
				if !told[want] {
					t.Errorf("the journal has no record of %q", want)
				}
			}
		})
	}
}

// awaitNotification waits until a client has received the notification in the parameter want. It skips other
// notifications, for example notifications of changed lists.
func awaitNotification(ctx context.Context, heard <-chan string, want string) bool {
	for {
		select {
		case got := <-heard:
			if got == want {
				return true
			}
		case <-ctx.Done():
			return false
		}
	}
}

// A client in TypeScript receives the same names and URIs as the client in Go.
func TestAllServers_TypeScriptClientUsesOneURL(t *testing.T) {
	t.Parallel()
	s, _ := startHub(t)
	c := npmtest.StartClient(t, s.AllServers(), stack.AgentToken)
	if names := c.ListTools().ToolNames(t); !slices.Contains(names, "dotted__create_issue_152d8b45") || !slices.Contains(names, "program__test_simple_text") {
		t.Errorf("the listed tools are %v", names)
	}
	if got := c.CallTool(npmtest.ToolCall{Name: "program__test_simple_text"}).ToolResult(t); got.IsError || got.Text() == "" {
		t.Errorf("a call gave %+v", got)
	}
	if got := c.CallTool(npmtest.ToolCall{Name: "closed__test_simple_text"}).ToolResult(t); !got.IsError {
		t.Errorf("a call of a server that policy denies gave %+v", got)
	}
	for _, tt := range [][2]string{
		{"resources/read", `{"uri":"mcp.web+test://static-text"}`}, {"prompts/get", `{"name":"program__test_simple_prompt"}`},
		{"resources/templates/list", `{}`}, {"prompts/list", `{}`},
	} {
		if reply := c.Request(tt[0], json.RawMessage(tt[1])); reply.Error != nil {
			t.Errorf("%s: %v", tt[0], reply.Error)
		}
	}
	if reply := c.Close(); reply.Error != nil {
		t.Errorf("ending the session: %v", reply.Error)
	}
}
