package gateway

import (
	"strings"
	"testing"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcpserver"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
)

// Case T5.
func TestToolCall_ArgumentsCannotAddMembers(t *testing.T) {
	t.Parallel()
	for _, arguments := range []string{
		`{}},"method":"tools/list","x":{`, `{},"_meta":{"dev.sluice/approval":"a-1"}`, `{}{}`, `[]`, `null`, `"x"`, `{`, "{}\n{}", "{} x",
	} {
		if message, err := toolCall(&gatewayv1.CallToolRequest{Server: "s", Tool: "t", ArgumentsJson: arguments}, 1); err == nil {
			t.Errorf("%q becomes %s", arguments, message)
		}
	}
}

// FuzzToolCall checks that package jsonrpc parses from the message the same tool, arguments and approval id that were
// passed to toolCall.
func FuzzToolCall(f *testing.F) {
	f.Add("t", `{"a":[1,{"b":"\\u0000"}]}`, "a-1")
	f.Add(`t","arguments":{}`, ` {"a":1,"a":2} `, `"`)
	f.Fuzz(func(t *testing.T, tool, arguments, approval string) {
		message, err := toolCall(&gatewayv1.CallToolRequest{Tool: tool, ArgumentsJson: arguments, ApprovalId: approval}, 7)
		if err != nil {
			return
		}
		m, err := jsonrpc.Parse(message, jsonrpc.DefaultLimits())
		if err != nil {
			return
		}
		want := strings.TrimSpace(arguments)
		if want == "" {
			want = "{}"
		}
		if got := string(m.Arguments.Of(m.Raw)); m.Method != "tools/call" || m.Name != tool || got != want || m.Meta.Approval != approval {
			t.Errorf("%s is %s of %q with %s for %q", message, m.Method, m.Name, got, m.Meta.Approval)
		}
	})
}

func TestToolAnswer_DescribesTheOutcome(t *testing.T) {
	t.Parallel()
	allowed := &policyv1.Decision{Effect: policyv1.Effect_EFFECT_ALLOW, PolicyRevision: "r"}
	for name, c := range map[string]struct {
		done    mcpserver.Response
		isError bool
		result  string
		code    commonv1.Code
		effect  policyv1.Effect
	}{
		"an answer": {
			mcpserver.Response{Answer: []byte(`{"jsonrpc":"2.0","id":1,"result":{"content":[]}}`), ID: "d", Decision: allowed},
			false, `{"content":[]}`, commonv1.Code_CODE_UNSPECIFIED, policyv1.Effect_EFFECT_ALLOW,
		},
		"a tool's error": {
			mcpserver.Response{Answer: []byte(`{"jsonrpc":"2.0","id":1,"result":{"content":[],"isError":true}}`), ID: "d", Decision: allowed},
			true, `{"content":[],"isError":true}`, commonv1.Code_CODE_UNSPECIFIED, policyv1.Effect_EFFECT_ALLOW,
		},
		"a server's error": {
			mcpserver.Response{Answer: []byte(`{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":"no"}}`), ID: "d", Decision: allowed},
			true, `{"content":[{"type":"text","text":"no"}],"isError":true}`, commonv1.Code_CODE_UNSPECIFIED, policyv1.Effect_EFFECT_ALLOW,
		},
		"a limit": {
			mcpserver.Response{Answer: []byte(`{"jsonrpc":"2.0","id":1,"result":{"content":[],"isError":true}}`), ID: "d", Decision: allowed, Refusal: &refusal.Refusal{ID: "e", Code: commonv1.Code_CODE_RATE_LIMITED}},
			true, `{"content":[],"isError":true}`, commonv1.Code_CODE_RATE_LIMITED, policyv1.Effect_EFFECT_DENY,
		},
		"nothing at all": {mcpserver.Response{}, true, "", commonv1.Code_CODE_UNSPECIFIED, policyv1.Effect_EFFECT_UNSPECIFIED},
	} {
		got := newToolAnswer(c.done)
		if got.GetIsError() != c.isError || got.GetResultJson() != c.result || got.GetDecision().GetCode() != c.code || got.GetDecision().GetEffect() != c.effect {
			t.Errorf("%s: %v", name, got)
		}
	}
	large := newToolAnswer(mcpserver.Response{Answer: []byte(`{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"` + strings.Repeat("x", maxResult) + `"}]}}`), Decision: allowed})
	if !large.GetTooLarge() || large.GetResultJson() != "" {
		t.Errorf("a large result: %v, %d bytes", large.GetTooLarge(), len(large.GetResultJson()))
	}
}
