package policy_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
	"github.com/sluice-mesh/sluice/services/e2e/gosdk"
	"github.com/sluice-mesh/sluice/services/e2e/rawmesh"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

// startLibraryServer starts a server of the official SDK with prompts, resources, completions and a tool.
func startLibraryServer(t *testing.T) string {
	t.Helper()
	s := mcp.NewServer(&mcp.Implementation{Name: "library", Version: "1"}, &mcp.ServerOptions{
		CompletionHandler: func(context.Context, *mcp.CompleteRequest) (*mcp.CompleteResult, error) {
			return &mcp.CompleteResult{Completion: mcp.CompletionResultDetails{Values: []string{"poem"}}}, nil
		},
	})
	mcp.AddTool(s, &mcp.Tool{Name: "lend"}, func(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, struct{}, error) {
		return nil, struct{}{}, nil
	})
	s.AddPrompt(&mcp.Prompt{Name: "praise a book"}, func(context.Context, *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
		return &mcp.GetPromptResult{Messages: []*mcp.PromptMessage{{Role: "user", Content: &mcp.TextContent{Text: "Praise it."}}}}, nil
	})
	s.AddResource(&mcp.Resource{Name: "shelf", URI: "library://shelf"}, func(context.Context, *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
		return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{{URI: "library://shelf", Text: "Ten books."}}}, nil
	})
	web := httptest.NewServer(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return s }, nil))
	t.Cleanup(web.Close)
	return web.URL
}

// Case T4. A method is allowed if a rule allows it by name. The initialize result declares a capability only to callers
// that may use it. Each request is recorded in the same way as a tool call.
func TestMethods_PassIfARuleNamesThem(t *testing.T) {
	t.Parallel()
	s := stack.StartInProcess(t, stack.Options{Servers: fmt.Sprintf("  library: {http: {url: %q}}", startLibraryServer(t)), Policy: `version: 1
server: library
default: deny
rules:
  - {name: prompts, match: {method: "prompts/*"}, action: allow}
  - {name: completion, match: {method: completion/complete}, action: allow, rate_limit: {max: 1, window: 1h}}
  - {name: resources-for-operators, match: {method: "resources/*", groups: [operators]}, action: allow}
`})
	c := gosdk.Connect(t, s.MCP("library"))
	defer func() {
		if err := c.Close(); err != nil {
			t.Errorf("end the session: %v", err)
		}
	}()
	if got := c.InitializeResult().Capabilities; got.Prompts == nil || !got.Prompts.ListChanged || got.Completions == nil || got.Tools == nil || got.Resources != nil {
		t.Errorf("the declared capabilities are %+v", got)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	prompts, err := c.ListPrompts(ctx, nil)
	if err != nil || len(prompts.Prompts) != 1 || prompts.Prompts[0].Name != "praise a book" {
		t.Fatalf("prompts: %+v, %v", prompts, err)
	}
	prompt, err := c.GetPrompt(ctx, &mcp.GetPromptParams{Name: "praise a book"})
	if err != nil || len(prompt.Messages) != 1 {
		t.Errorf("a prompt: %+v, %v", prompt, err)
	}
	ask := &mcp.CompleteParams{Ref: &mcp.CompleteReference{Type: "ref/prompt", Name: "praise a book"}, Argument: mcp.CompleteParamsArgument{Name: "kind", Value: "p"}}
	done, err := c.Complete(ctx, ask)
	if err != nil || !slices.Equal(done.Completion.Values, []string{"poem"}) {
		t.Errorf("a completion: %+v, %v", done, err)
	}
	refused := func(what, code string, err error) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), code) {
			t.Errorf("%s: %v, want %s", what, err, code)
		}
	}
	_, err = c.Complete(ctx, ask)
	refused("a completion too many", "Rate limit", err)
	_, err = c.ReadResource(ctx, &mcp.ReadResourceParams{URI: "library://shelf"})
	refused("a resource", "no rule allows this method", err)
	_, err = c.ListTools(ctx, nil)
	if err != nil {
		t.Errorf("tools: %v", err)
	}
	var told []string
	for _, r := range stack.ListRecords(ctx, t, gatewayv1.NewGatewayServiceClient(s.Operator(t))) {
		if kind := r.GetKind(); kind == gatewayv1.RecordKind_RECORD_KIND_INTENT || kind == gatewayv1.RecordKind_RECORD_KIND_REFUSAL {
			told = append(told, strings.TrimSpace(fmt.Sprintf("%s %s %s", r.GetMethod(), r.GetRule().GetRule(), r.GetTool())))
		}
	}
	want := []string{
		"prompts/list prompts", "prompts/get prompts praise a book", "completion/complete completion praise a book",
		"completion/complete completion praise a book", "resources/read  library://shelf",
	}
	if diff := cmp.Diff(want, told); diff != "" {
		t.Errorf("records (-want +got):\n%s", diff)
	}
}

// Case T4. The policy allows every method. Nevertheless the mesh refuses methods of another protocol revision, and
// methods that only servers may send. A method name with different letter case is invalid.
func TestMethods_SomeAreRefusedDespiteARule(t *testing.T) {
	t.Parallel()
	f := rawmesh.Start(t, "version: 1\nname: open\nserver: raw\ndefault: allow\nrules:\n  - {name: all, match: {method: \"*\"}, action: allow}\n", "")
	c := f.Connect(t)
	before := len(f.Upstream.Requests())
	for method, want := range map[string]string{
		`"sampling/createMessage","params":{}`:  "method_denied",
		`"roots/list"`:                          "method_denied",
		`"subscriptions/listen","params":{}`:    "protocol_version",
		`"server/discover"`:                     "protocol_version",
		`"Tools/Call","params":{"name":"safe"}`: "method_invalid",
		`"tools/LIST"`:                          "method_invalid",
		`"completion/Complete","params":{}`:     "method_invalid",
		`"notifications/roots/list_changed"`:    "id_invalid",
	} {
		if resp := c.Post(`{"jsonrpc":"2.0","id":5,"method":` + method + `}`); resp.Decision(t).Code != want {
			t.Errorf("%s: %d %s, want %s", method, resp.Status, resp.Body, want)
		}
	}
	if got := f.Upstream.Requests(); len(got) != before {
		t.Errorf("%d requests reached the server: %s", len(got)-before, got[len(got)-1].Body)
	}
	if resp := c.Post(`{"jsonrpc":"2.0","id":6,"method":"x/y"}`); resp.Status != http.StatusOK || !strings.Contains(string(resp.Body), `"result":{}`) {
		t.Errorf("an unknown method that policy allows: %d %s", resp.Status, resp.Body)
	}
}
