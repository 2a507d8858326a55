package policy_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	"github.com/sluice-mesh/sluice/services/e2e/gosdk"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

const strictPolicy = `version: 1
name: files
default: deny
tools:
  refund: {action: allow, forward: strict}
  send: {action: require_approval}
  wait: {action: allow}
  count: {action: allow}
rules:
  - {name: mails, match: {tool: send}, forward: strict}
  - {name: counts, match: {tool: count}, forward: strict}
  - {name: soon, match: {tool: wait}, timeout: 300ms}
`

var strictTools = map[string]string{
	"refund": `{"$schema":"http://json-schema.org/draft-07/schema#","type":"object","properties":{
		"amount":{"type":"number","exclusiveMinimum":0},"currency":{"enum":["EUR","USD"]},"note":{"type":["string","null"]},
		"to":{"$ref":"#/definitions/account"}},"required":["amount","currency"],"definitions":{"account":{"type":"object","properties":{"iban":{"type":"string"}}}}}`,
	"send":  `{"type":"object","properties":{"to":{"type":"string"}},"required":["to"]}`,
	"count": `{"type":"object","properties":{"to":{"type":"string","pattern":"^(?!x)"}}}`,
	"wait":  `{"type":"object"}`,
}

// startStrictServer starts a server that does not check arguments. Its tool "wait" never responds. startStrictServer
// returns the server's URL, and a counter of the calls to the server's tools.
func startStrictServer(t *testing.T) (string, *atomic.Int64) {
	t.Helper()
	calls := new(atomic.Int64)
	s := mcp.NewServer(&mcp.Implementation{Name: "money", Version: "1"}, nil)
	for name, schema := range strictTools {
		s.AddTool(&mcp.Tool{Name: name, InputSchema: json.RawMessage(schema)}, func(ctx context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			calls.Add(1)
			if r.Params.Name == "wait" {
				<-ctx.Done()
			}
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "done"}}}, nil
		})
	}
	web := httptest.NewServer(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return s }, nil))
	t.Cleanup(web.Close)
	return web.URL, calls
}

// An official client sends arguments that the tool's schema does not allow. The server never receives them, the model
// receives an error that says which argument is wrong, and no person is asked for approval.
func TestStrict_RefusesArgumentsThatTheSchemaDoesNotAllow(t *testing.T) {
	t.Parallel()
	url, calls := startStrictServer(t)
	s := stack.StartInProcess(t, stack.Options{Servers: fmt.Sprintf("  money: {http: {url: %q}}", url), Policy: strictPolicy})
	for of, prefix := range map[string]string{s.MCP("money"): "", s.AllServers(): "money__"} {
		c := gosdk.Connect(t, of)
		for _, tt := range []struct{ tool, arguments, want string }{
			{"refund", `{"amount":5,"currency":"EUR"}`, "done"},
			{"refund", `{"amount":5,"currency":"EUR","note":null,"to":{"iban":"x"}}`, "done"},
			{"refund", `{"amount":5,"currency":"EUR","Amount":500}`, "arguments.Amount is not declared by the schema (rule files/tools.refund has forward: strict)"},
			{"refund", `{"amount":5,"currency":"EUR","to":{"iban":"x","bic":"y"}}`, "arguments.to.bic is not declared by the schema"},
			{"refund", `{"amount":"5","currency":"EUR"}`, "arguments.amount must be a number, not a string"},
			{"refund", `{"amount":5,"currency":"GBP"}`, "arguments.currency must be one of the values that the schema lists"},
			{"refund", `{"amount":5}`, "arguments.currency is required"},
			{"send", `{"to":7}`, "arguments.to must be a string, not a number (rule files/mails has forward: strict)"},
			{"count", `{"to":"a"}`, "a pattern in it is not a regular expression of RE2"},
		} {
			before := calls.Load()
			result, err := c.CallTool(t.Context(), &mcp.CallToolParams{Name: prefix + tt.tool, Arguments: json.RawMessage(tt.arguments)})
			if err != nil {
				t.Fatal(err)
			}
			text := result.Content[0].(*mcp.TextContent).Text
			if !strings.Contains(text, tt.want) || result.IsError != (tt.want != "done") {
				t.Errorf("%s %s: %q, want %q", tt.tool, tt.arguments, text, tt.want)
			}
			if ran := calls.Load() > before; ran != (tt.want == "done") {
				t.Errorf("%s %s: the server received the call: %t", tt.tool, tt.arguments, ran)
			}
		}
		if err := c.Close(); err != nil {
			t.Errorf("end the session: %v", err)
		}
	}
	list, err := approvalv1.NewApprovalServiceClient(s.Operator(t)).ListApprovals(t.Context(), &approvalv1.ListApprovalsRequest{})
	if err != nil || len(list.GetApprovals()) > 0 {
		t.Errorf("the approvals are %v, %v", list, err)
	}
	explain := stack.Run(t, stack.Command{
		Args: []string{"policy", "explain", "--addr", s.GRPC, "--server", "money", "--tool", "wait"}, Env: []string{"SLUICE_TOKEN=" + stack.OperatorToken},
	})
	stack.CheckCommand(t, explain, 0, explain.Stdout, "timeout: 300ms for the server's response, by files/soon")
}

// A server does not respond within the timeout that a rule sets. The error contains the name of that rule, even though
// the rule does not determine the decision on the call.
func TestTimeout_NamesItsRule(t *testing.T) {
	t.Parallel()
	url, _ := startStrictServer(t)
	s := stack.StartInProcess(t, stack.Options{Servers: fmt.Sprintf("  money: {http: {url: %q}}", url), Policy: strictPolicy})
	began := time.Now()
	result, err := gosdk.Connect(t, s.MCP("money")).CallTool(t.Context(), &mcp.CallToolParams{Name: "wait"})
	if err != nil {
		t.Fatal(err)
	}
	const want = "Outcome unknown: the server did not answer within 300ms (the timeout of rule files/soon)"
	if text := result.Content[0].(*mcp.TextContent).Text; !strings.HasPrefix(text, want) || time.Since(began) > 20*time.Second {
		t.Errorf("after %s: %q, want %q", time.Since(began), text, want)
	}
}
