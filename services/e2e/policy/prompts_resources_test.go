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

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sluice-mesh/sluice/services/e2e/gosdk"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

// startArchiveServer starts a server with prompts, resources and resource templates. The policy hides some of them.
func startArchiveServer(t *testing.T) string {
	t.Helper()
	s := mcp.NewServer(&mcp.Implementation{Name: "archive", Version: "1"}, nil)
	for _, name := range []string{"review_text", "review code", "write_letter"} {
		s.AddPrompt(&mcp.Prompt{Name: name}, func(context.Context, *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
			return &mcp.GetPromptResult{Messages: []*mcp.PromptMessage{{Role: "user", Content: &mcp.TextContent{Text: name}}}}, nil
		})
	}
	read := func(_ context.Context, r *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
		return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{{URI: r.Params.URI, Text: "read"}}}, nil
	}
	for _, uri := range []string{"note://team/plan", "note://team/drafts/plan", "note://board/plan"} {
		s.AddResource(&mcp.Resource{Name: "x", URI: uri}, read)
	}
	for _, template := range []string{"note://team/{name}", "note://team/drafts/{name}", "note://{whose}/{name}", "other://{name}"} {
		s.AddResourceTemplate(&mcp.ResourceTemplate{Name: "x", URITemplate: template}, read)
	}
	web := httptest.NewServer(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return s }, nil))
	t.Cleanup(web.Close)
	return web.URL
}

const archivePolicy = `version: 1
default: deny
rules:
  - {name: lists, match: {method: ["prompts/list", "resources/list", "resources/templates/list"]}, action: allow}
  - {name: reviews, match: {prompt: "review*"}, action: allow}
  - {name: notes, match: {uri: "note://team/*"}, action: allow}
  - {name: not-the-drafts, match: {uri: "note://team/drafts/*"}, action: deny, reason: drafts are not finished}
`

// Case T4. An official client lists only the prompts and resources that it may use, and can't get others under any
// name. The test uses both the server's URL and the URL for all servers.
func TestPromptsAndResources_OnlyAllowedNamesAreVisible(t *testing.T) {
	t.Parallel()
	s := stack.StartInProcess(t, stack.Options{Servers: fmt.Sprintf("  archive: {http: {url: %q}}", startArchiveServer(t)), Policy: archivePolicy})
	for url, called := range map[string]struct{ prompt, uri string }{
		s.MCP("archive"): {"", ""}, s.AllServers(): {"archive__", "mcp.archive+"},
	} {
		c := gosdk.Connect(t, url)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		var got []string
		for p, err := range c.Prompts(ctx, nil) {
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, strings.TrimPrefix(p.Name, called.prompt))
		}
		for r, err := range c.Resources(ctx, nil) {
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, strings.TrimPrefix(r.URI, called.uri))
		}
		for r, err := range c.ResourceTemplates(ctx, nil) {
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, strings.TrimPrefix(r.URITemplate, called.uri))
		}
		slices.Sort(got)
		want := []string{"note://team/plan", "note://team/{name}", "note://{whose}/{name}", "review code", "review_text"}
		if !slices.Equal(got, want) {
			t.Errorf("%s lists %q, want %q", url, got, want)
		}
		if _, err := c.GetPrompt(ctx, &mcp.GetPromptParams{Name: called.prompt + "review code"}); err != nil {
			t.Errorf("a prompt: %v", err)
		}
		if _, err := c.GetPrompt(ctx, &mcp.GetPromptParams{Name: called.prompt + "write_letter"}); err == nil || !strings.Contains(err.Error(), "no rule allows this method") {
			t.Errorf("a prompt that no rule allows: %v", err)
		}
		for uri, code := range map[string]string{
			"note://team/plan": "", "note://team/other": "", "note://board/plan": "no rule allows this method",
			"note://team/drafts/plan": "drafts are not finished", "note://team/x/../drafts/plan": "drafts are not finished", "note://TEAM/drafts/plan": "drafts are not finished",
			"NOTE://team/drafts/plan": "drafts are not finished", "note://team/%64rafts/plan": "drafts are not finished",
		} {
			_, err := c.ReadResource(ctx, &mcp.ReadResourceParams{URI: called.uri + uri})
			if code == "" && err != nil || code != "" && (err == nil || !strings.Contains(err.Error(), code)) {
				t.Errorf("%s%s: %v, want %q", called.uri, uri, err, code)
			}
		}
		if err := c.Close(); err != nil {
			t.Errorf("end the session: %v", err)
		}
	}
}
