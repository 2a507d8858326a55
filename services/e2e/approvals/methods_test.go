package approvals_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sluice-mesh/sluice/services/e2e/gosdk"
	"github.com/sluice-mesh/sluice/services/e2e/rawmesh"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

const (
	// noteURI is the URI of a resource. Its query contains a secret.
	noteURI      = "note://team/plan?key=secret-1"
	otherNoteURI = "note://team/plan?key=secret-2"

	readApprovalPolicy = `version: 1
name: kept
server: kept
default: deny
rules:
  - {name: lists, match: {method: [resources/list, prompts/list]}, action: allow}
  - {name: letters, match: {prompt: letter, method: prompts/get}, action: require_approval}
  - {name: notes, match: {uri: "note://team/*", method: resources/read}, action: require_approval, reason: notes are the team's}
`
)

// startReadApprovalMesh starts a mesh with a server of the official SDK that has a prompt and three resources. Most of
// them need approval. The returned counter got counts the prompts and resources that the server has returned.
func startReadApprovalMesh(t *testing.T, extra string) (f *rawmesh.Mesh, got *atomic.Int32) {
	t.Helper()
	got = new(atomic.Int32)
	s := mcp.NewServer(&mcp.Implementation{Name: "kept", Version: "1"}, nil)
	s.AddPrompt(&mcp.Prompt{Name: "letter"}, func(context.Context, *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
		got.Add(1)
		return &mcp.GetPromptResult{Messages: []*mcp.PromptMessage{{Role: "user", Content: &mcp.TextContent{Text: "written"}}}}, nil
	})
	for _, uri := range []string{noteURI, otherNoteURI, "note://board/plan"} {
		s.AddResource(&mcp.Resource{Name: "x", URI: uri}, func(_ context.Context, r *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
			got.Add(1)
			return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{{URI: r.Params.URI, Text: "read"}}}, nil
		})
	}
	web := httptest.NewServer(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return s }, nil))
	t.Cleanup(web.Close)
	return &rawmesh.Mesh{Stack: stack.StartInProcess(t, stack.Options{Servers: fmt.Sprintf("  kept: {http: {url: %q}}", web.URL), Policy: readApprovalPolicy, Extra: extra})}, got
}

func readRequest(uri string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":%q}}`, uri)
}

// Cases A1, A2. After a read of a resource is approved, several callers request the resource at the same time. The test
// checks that the resource is read once, and that no other resource is read. After a denial, later requests are also
// refused for some time.
func TestApprovals_ResourceIsReadOnceAfterItsApproval(t *testing.T) {
	t.Parallel()
	f, got := startReadApprovalMesh(t, "approvals: {hold: 0s}")
	c := stack.Connect(t, f.MCP("kept"), stack.AgentToken)
	first := c.Post(readRequest(noteURI))
	if d := first.Decision(t); first.ErrorCode(t) != -31403 || d.Code != "approval_pending" || !d.Retryable || !strings.Contains(first.Text(t), "notes are the team's") || !strings.Contains(first.Text(t), "Make the same request again later") {
		t.Fatalf("the ticket is %s", first.Body)
	}
	id := f.AwaitOnePending(t)
	if diff := cmp.Diff([]rawmesh.Approval{{ID: id, State: "pending", Server: "kept", Tool: "note://team/plan"}}, f.ListApprovals(t)); diff != "" {
		t.Errorf("pending approvals (-want +got):\n%s", diff)
	}
	if ran := f.RunApprovals(t, stack.OperatorToken, "list"); !strings.Contains(ran.Stdout, "kept resources/read note://team/plan ") || strings.Contains(ran.Stdout, "secret") {
		t.Errorf("the list of approvals has %s", ran.Stdout)
	}
	if ran := f.RunApprovals(t, stack.OperatorToken, "show", id); !strings.Contains(ran.Stdout, "call           kept resources/read note://team/plan\n") || !strings.Contains(ran.Stdout, `"uri": "`+noteURI+`"`) {
		t.Errorf("the view of the approval has %s", ran.Stdout)
	}
	stack.CheckCommand(t, f.RunApprovalsJSON(t, "approve", id, "--yes"), 0, "")
	if d := c.Post(readRequest(otherNoteURI)).Decision(t); d.Code != "approval_pending" || got.Load() != 0 {
		t.Errorf("another resource: %+v, and %d were read", d, got.Load())
	}
	if d := c.Post(readRequest("note://board/plan")).Decision(t); d.Code != "method_denied" {
		t.Errorf("a resource that no rule allows: %+v", d)
	}
	var racing sync.WaitGroup
	var had atomic.Int32
	for range 10 {
		racing.Go(func() {
			if resp, err := c.TryPost([]byte(readRequest(noteURI))); err == nil && strings.Contains(string(resp.Body), `"text":"read"`) {
				had.Add(1)
			}
		})
	}
	racing.Wait()
	if had.Load() != 1 || got.Load() != 1 {
		t.Errorf("%d callers received the resource, and it was read %d times", had.Load(), got.Load())
	}
	f.AwaitState(t, id, "done")
	c.Post(readRequest(noteURI)) // makes another approval request unless one of the racing callers has already made it
	for _, a := range f.ListApprovals(t, "--state", "pending") {
		stack.CheckCommand(t, f.RunApprovalsJSON(t, "deny", a.ID, "--yes", "-m", "not today"), 0, "")
	}
	for _, uri := range []string{noteURI, otherNoteURI} {
		if resp := c.Post(strings.Replace(readRequest(uri), `"uri"`, `"other":1,"uri"`, 1)); resp.Decision(t).Code != "approval_denied" || !strings.Contains(resp.Text(t), "denied by operator: not today") {
			t.Errorf("denied: %s", resp.Body)
		}
	}
	if got.Load() != 1 {
		t.Errorf("%d were read", got.Load())
	}
}

// A read of a resource has been approved. Then the policy changes, and either allows the read without an approval or
// denies it. The test checks that the approval is cancelled and that its votes do not count for a later read.
func TestApprovals_ApprovedReadIsCancelledWhenPolicyRequiresNone(t *testing.T) {
	t.Parallel()
	for action, want := range map[string]struct {
		code, state string
		got         int32
	}{"allow": {"", "cancelled", 1}, "deny": {"denied_by_rule", "cancelled", 0}} {
		t.Run(action, func(t *testing.T) {
			t.Parallel()
			f, got := startReadApprovalMesh(t, "approvals: {hold: 0s}")
			c := stack.Connect(t, f.MCP("kept"), stack.AgentToken)
			c.Post(readRequest(noteURI))
			id := f.AwaitOnePending(t)
			stack.CheckCommand(t, f.RunApprovalsJSON(t, "approve", id, "--yes"), 0, "")
			changePolicy(t, f, c, strings.Replace(readApprovalPolicy, "action: require_approval, reason", "action: "+action+", reason", 1)+"tools:\n")
			if resp := c.Post(readRequest(noteURI)); resp.Decision(t).Code != want.code || got.Load() != want.got {
				t.Errorf("under the changed policy the response is %s, after %d reads", resp.Body, got.Load())
			}
			f.AwaitState(t, id, want.state)
			changePolicy(t, f, c, readApprovalPolicy+"tools:\n")
			if resp := c.Post(readRequest(noteURI)); resp.Decision(t).Code != "approval_pending" || f.AwaitOnePending(t) == id || got.Load() != want.got {
				t.Errorf("once policy requires an approval again the response is %s, after %d reads", resp.Body, got.Load())
			}
		})
	}
}

// Official SDK clients receive prompts and resources that need approval: in a session, at the URL for all servers, and
// without a session. A client without a session makes several round trips while it waits for the approval.
func TestApprovals_OfficialClientsWaitForPromptsAndResources(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		url  func(*testing.T, *stack.Stack) string
		hold string
		// prompt and uri are the prefixes that the URL adds to the server's prompt names and URIs.
		prompt, uri string
		version     string
	}{
		"in a session at all servers": {func(t *testing.T, s *stack.Stack) string {
			t.Helper()
			return gosdk.SessionsOnlyProxy(t, s.AllServers())
		}, "60s", "kept__", "mcp.kept+", "2025-11-25"},
		"without a session at all servers": {func(_ *testing.T, s *stack.Stack) string { return s.AllServers() }, "5s", "kept__", "mcp.kept+", "2026-07-28"},
		"without a session":                {func(_ *testing.T, s *stack.Stack) string { return s.MCP("kept") }, "5s", "", "", "2026-07-28"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, got := startReadApprovalMesh(t, "approvals: {hold: "+tt.hold+"}")
			c, _ := gosdk.ConnectInteractive(t, gosdk.StreamingTransport(tt.url(t, f.Stack)))
			t.Cleanup(func() { _ = c.Close() }) // a request may still be in flight if the test has failed
			if v := c.InitializeResult().ProtocolVersion; v != tt.version {
				t.Fatalf("the client uses protocol version %s", v)
			}
			ctx := context.WithoutCancel(t.Context())
			if list, err := c.ListResources(ctx, nil); err != nil || len(list.Resources) != 2 {
				t.Errorf("the resources that need approval are listed as %s, %v", resultJSON(list), err)
			}
			for what, ask := range map[string]func() (any, error){
				"read":    func() (any, error) { return c.ReadResource(ctx, &mcp.ReadResourceParams{URI: tt.uri + noteURI}) },
				"written": func() (any, error) { return c.GetPrompt(ctx, &mcp.GetPromptParams{Name: tt.prompt + "letter"}) },
			} {
				type answer struct {
					got any
					err error
				}
				answered := make(chan answer, 1)
				begin := func() time.Time {
					go func() {
						got, err := ask()
						answered <- answer{got, err}
					}()
					return time.Now()
				}
				before, asked := got.Load(), begin()
				id := f.AwaitOnePending(t)
				<-time.After(time.Until(asked.Add(6 * time.Second))) // during the second round trip
				if got.Load() != before {
					t.Errorf("%s: the server received the request before the approval", what)
				}
				stack.CheckCommand(t, f.RunApprovalsJSON(t, "approve", id, "--yes"), 0, "")
				if a := <-answered; a.err != nil || !strings.Contains(resultJSON(a.got), `"text":"`+what+`"`) || got.Load() != before+1 {
					t.Errorf("%s: after the approval the response is %v, %v", what, a.got, a.err)
				}
				begin()
				stack.CheckCommand(t, f.RunApprovalsJSON(t, "deny", f.AwaitOnePending(t), "--yes", "-m", "too much"), 0, "")
				if a := <-answered; a.err == nil || !strings.Contains(a.err.Error(), "denied by operator: too much") || got.Load() != before+1 {
					t.Errorf("%s: after the denial the response is %v, %v", what, a.got, a.err)
				}
			}
		})
	}
}

func resultJSON(answer any) string {
	raw, err := json.Marshal(answer)
	if err != nil {
		return err.Error()
	}
	return string(raw)
}
