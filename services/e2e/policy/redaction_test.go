package policy_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
	"github.com/sluice-mesh/sluice/services/e2e/gosdk"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
)

// secretServer is the name of the environment variable that makes this test binary run as a stdio server. The server's
// responses contain secrets.
const secretServer = "SLUICE_TEST_SECRET_SERVER"

// These are the secrets, which must not reach a client. The values are invented.
var (
	secretKey   = "AKIA" + "Q3EGRZ7TKMNVXW2P"
	secretMail  = "zelda" + "@hidden.example"
	secretCard  = "4111 1111 " + "1111 1111"
	secretPhone = "555" + "0142"
)

var allSecrets = []string{secretKey, secretMail, secretCard, secretPhone}

// newSecretServer returns a server whose tools respond with secrets in every part of a result. received is called with
// the arguments of each call.
func newSecretServer(received func(arguments string)) *mcp.Server {
	s := mcp.NewServer(&mcp.Implementation{Name: "secrets", Version: "1"}, nil)
	schema := json.RawMessage(`{"type":"object"}`)
	for _, name := range []string{"leak", "fail", "ask"} {
		s.AddTool(&mcp.Tool{Name: name, InputSchema: schema}, func(ctx context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			received(string(r.Params.Arguments))
			if token := r.Params.GetProgressToken(); token != nil {
				_ = r.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: token, Progress: 1, Message: "for " + secretMail}) // the client may have disconnected
			}
			if name == "fail" {
				return nil, fmt.Errorf("no access for %s with %s", secretMail, secretKey)
			}
			data := map[string]any{"user": map[string]any{"phone": secretPhone, "mail": secretMail}, "keys": []any{secretKey}}
			text, err := json.Marshal(data)
			return &mcp.CallToolResult{
				Content: []mcp.Content{
					&mcp.TextContent{Text: string(text)}, &mcp.TextContent{Text: "card " + secretCard + ", key " + secretKey},
					&mcp.EmbeddedResource{Resource: &mcp.ResourceContents{URI: "file:///a", Text: "mail " + secretMail}},
				},
				StructuredContent: data,
			}, err
		})
	}
	return s
}

// runSecretServer runs the server over standard input and output.
func runSecretServer() int {
	if err := newSecretServer(func(string) {}).Run(context.Background(), &mcp.StdioTransport{}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

const redactionPolicy = `version: 1
name: files
default: deny
tools:
  leak: {action: allow}
  fail: {action: allow}
  ask: {action: require_approval}
rules:
  - name: clean
    redact:
      results: {detect: [secrets, email, card], paths: [/user/phone]}
      arguments: {detect: [email]}
`

// recordingTransport is an io.Writer that stores all bytes that are written to it. It is safe for concurrent use.
type recordingTransport struct {
	mu  sync.Mutex
	got bytes.Buffer
}

func (r *recordingTransport) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.got.Write(p)
}

func (r *recordingTransport) text() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.got.String()
}

// checkNoSecrets fails the test if the text contains a secret. The parameter where describes the text.
func checkNoSecrets(t *testing.T, where, text string) {
	t.Helper()
	for _, secret := range allSecrets {
		for _, form := range []string{secret, strings.ReplaceAll(secret, "@", `\u0040`), strings.ReplaceAll(secret, " ", "")} {
			if strings.Contains(text, form) {
				t.Errorf("%s contains %q", where, form)
			}
		}
	}
}

// A server over HTTP and a server over stdio respond with secrets in texts, JSON, resources, errors and progress
// notifications. No byte of the secrets reaches the client, the log, the mesh's data directory or the exported spans.
func TestRedaction_SecretsReachNobody(t *testing.T) {
	t.Parallel()
	var received recordingTransport
	server := newSecretServer(func(arguments string) { fmt.Fprintln(&received, arguments) })
	web := httptest.NewServer(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil))
	t.Cleanup(web.Close)
	collector := stack.NewCollector(t)
	var log recordingTransport
	s := stack.StartInProcess(t, stack.Options{
		Servers: fmt.Sprintf("  web: {http: {url: %q}}\n  program: {stdio: {command: [%q], env: {%s: \"1\"}}}", web.URL, os.Args[0], secretServer),
		Policy:  redactionPolicy,
		Extra:   fmt.Sprintf("telemetry: {otlp: %q, sample: 1}", collector.URL),
		Log:     &log,
	})
	for of, prefix := range map[string]string{s.MCP("web"): "", s.MCP("program"): "", s.AllServers(): "web__"} {
		callLeakingTools(t, of, prefix)
	}
	if text := received.text(); strings.Contains(text, "@") || !strings.Contains(text, `"to":"[redacted: email]"`) {
		t.Errorf("the server received %s", text)
	}
	checkNoSecrets(t, "the log", log.text())
	eventually.Holds(t, "spans are exported", func() bool { return len(collector.Spans("")) > 0 })
	checkNoSecrets(t, "the export", string(collector.Raw()))
	err := filepath.WalkDir(filepath.Join(s.Dir, "data"), func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			checkNoSecrets(t, path, stack.ReadFile(t, path))
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	checkRedactedRecords(t, s)
	checkRawResponses(t, s)
}

// checkRawResponses checks every byte of the responses in revision 2025-11-25, which uses sessions, and in revision
// 2026-07-28.
func checkRawResponses(t *testing.T, s *stack.Stack) {
	t.Helper()
	for _, server := range []string{"web", "program"} {
		sessions, modern := stack.Connect(t, s.MCP(server), stack.AgentToken), stack.NewClient(t, s.MCP(server), stack.AgentToken)
		modern.Version, modern.Header = "2026-07-28", http.Header{"Mcp-Method": {"tools/call"}, "Mcp-Name": {"leak"}}
		for era, resp := range map[string]stack.Response{
			"2025-11-25": sessions.Post(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"leak","arguments":{},"_meta":{"progressToken":"p"}}}`),
			"2026-07-28": modern.Post(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"leak","arguments":{},"_meta":{"progressToken":"p","io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`),
		} {
			all := string(bytes.Join(append(resp.Events, resp.Body), []byte("\n")))
			checkNoSecrets(t, server+" "+era, all)
			if strings.Count(all, "[redacted: secrets]") != 3 || !strings.Contains(all, "for [redacted: email]") || !strings.Contains(all, "[redacted: path]") {
				t.Errorf("%s %s: %s", server, era, all)
			}
		}
	}
}

// callLeakingTools calls the tools whose results contain secrets, and checks everything that the client receives.
func callLeakingTools(t *testing.T, url, prefix string) {
	t.Helper()
	var heard recordingTransport
	c := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, &mcp.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
			fmt.Fprintln(&heard, r.Params.Message)
		},
	})
	session, err := c.Connect(t.Context(), gosdk.StreamingTransport(url), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = session.Close() }() // the mesh ends the session otherwise
	for tool, want := range map[string]string{"leak": "[redacted: card], key [redacted: secrets]", "fail": "no access for [redacted: email] with [redacted: secrets]"} {
		params := &mcp.CallToolParams{Name: prefix + tool, Arguments: map[string]any{"to": secretMail}}
		params.SetProgressToken("p-" + tool)
		result, failed := session.CallTool(t.Context(), params)
		raw, err := json.Marshal(result)
		if err != nil || (failed != nil) != (tool == "fail") {
			t.Fatalf("%s %s: %v, %v", url, tool, err, failed)
		}
		if failed != nil {
			raw = []byte(failed.Error())
		}
		checkNoSecrets(t, url+" "+tool, string(raw))
		if !strings.Contains(string(raw), want) || tool == "leak" && !strings.Contains(string(raw), `"phone":"[redacted: path]"`) {
			t.Errorf("%s %s: %s", url, tool, raw)
		}
	}
	eventually.Holds(t, "progress arrives", func() bool { return strings.Contains(heard.text(), "for [redacted: email]") })
	checkNoSecrets(t, url+" progress", heard.text())
}

// checkRedactedRecords checks the numbers of redactions in the journal, and the command that prints these numbers.
func checkRedactedRecords(t *testing.T, s *stack.Stack) {
	t.Helper()
	records := stack.ListRecords(t.Context(), t, gatewayv1.NewGatewayServiceClient(s.Operator(t)))
	id := ""
	for _, r := range records {
		if len(r.GetRedacted()) > 0 && r.GetTool() == "leak" {
			id = r.GetDecisionId()
		}
	}
	if id == "" {
		t.Fatal("no record has the number of redacted values")
	}
	show := stack.Run(t, stack.Command{Args: []string{"decisions", "show", id, "--addr", s.GRPC}, Env: []string{"SLUICE_TOKEN=" + stack.OperatorToken}})
	stack.CheckCommand(t, show, 0, squeeze(show.Stdout), "redacted 3 secrets, 1 card, 5 email, 2 path")
	explain := stack.Run(t, stack.Command{
		Args: []string{"policy", "explain", "--addr", s.GRPC, "--server", "web", "--tool", "leak", "--all"}, Env: []string{"SLUICE_TOKEN=" + stack.OperatorToken},
	})
	stack.CheckCommand(t, explain, 0, explain.Stdout, "redacts in results: path /user/phone, by files/clean", "redacts in arguments: detector email, by files/clean")
}

// A policy redacts arguments of a call that needs approval. A person approves the call with the redacted arguments, and
// the server receives exactly these arguments.
func TestRedaction_ApprovalShowsTheReplacedArguments(t *testing.T) {
	t.Parallel()
	var received recordingTransport
	server := newSecretServer(func(arguments string) { fmt.Fprintln(&received, arguments) })
	web := httptest.NewServer(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil))
	t.Cleanup(web.Close)
	s := stack.StartInProcess(t, stack.Options{Servers: fmt.Sprintf("  web: {http: {url: %q}}", web.URL), Policy: redactionPolicy})
	approvals := approvalv1.NewApprovalServiceClient(s.Operator(t))
	done := make(chan string, 1)
	session := gosdk.Connect(t, s.MCP("web"))
	go func() {
		result, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: "ask", Arguments: map[string]any{"to": secretMail}})
		raw, _ := json.Marshal(result) // an error is in the text too
		done <- fmt.Sprint(string(raw), err)
	}()
	var id string
	eventually.Holds(t, "an approval is requested", func() bool {
		list, err := approvals.ListApprovals(t.Context(), &approvalv1.ListApprovalsRequest{})
		if err == nil && len(list.GetApprovals()) > 0 {
			id = list.GetApprovals()[0].GetId()
		}
		return id != ""
	})
	show := stack.Run(t, stack.Command{Args: []string{"approvals", "show", id, "--addr", s.GRPC}, Env: []string{"SLUICE_TOKEN=" + stack.OperatorToken}})
	stack.CheckCommand(t, show, 0, show.Stdout, "[redacted: email]")
	checkNoSecrets(t, "approvals show", show.Stdout)
	approve := stack.Run(t, stack.Command{Args: []string{"approvals", "approve", id, "--yes", "--addr", s.GRPC}, Env: []string{"SLUICE_TOKEN=" + stack.OperatorToken}})
	if approve.Code != 0 {
		t.Fatalf("%+v", approve)
	}
	result := <-done
	checkNoSecrets(t, "the result", result)
	if !strings.Contains(result, "[redacted: card]") || !strings.Contains(received.text(), `"to":"[redacted: email]"`) {
		t.Errorf("the server received %s, and the client %s", received.text(), result)
	}
}
