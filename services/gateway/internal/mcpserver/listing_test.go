package mcpserver_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/gatewaytest"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

// Case X9. The policy hides tools from the caller. If a tool is not in the caller's list, a call to it receives the
// same answer as a call to an unknown tool. If the server adds a tool, the gateway finds it after 30 s, because the
// gateway lists the server's tools at most once in that time.
func TestCall_UnlistedToolIsUnknown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTestGateway(t)
		w.files.Discovery = nil
		w.Policy.Access = &policyv1.CheckServerResponse{CouldAllow: true}
		lists, tools := 0, `{"name":"safe"},{"name":"secret-a"}`
		w.files.Request = func(_ context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
			if r.Method() == "tools/list" {
				lists++
				return gatewaytest.Result(r, `{"tools":[`+tools+`]}`), nil
			}
			return gatewaytest.Result(r, `{"content":[]}`), nil
		}
		h := w.connect()
		code := func(tool string) string {
			return w.do("POST", "/mcp/files", strings.Replace(toolCall, "safe", tool, 1), h).code()
		}
		for range 5 {
			if a, b, c := code("safe"), code("secret-a"), code("fresh"); a != "" || b != "tool_unknown" || c != "tool_unknown" {
				t.Errorf("safe %q, secret-a %q, fresh %q", a, b, c)
			}
		}
		tools += `,{"name":"fresh"}`
		time.Sleep(31 * time.Second)
		if a, b := code("secret-a"), code("fresh"); a != "tool_unknown" || b != "" {
			t.Errorf("later: secret-a %q, fresh %q", a, b)
		}
		if lists != 2 || len(w.Policy.Decided()) != 6 {
			t.Errorf("the server was asked %d times, policy decided %d times", lists, len(w.Policy.Decided()))
		}
		w.Policy.Access = nil
		if got := code("safe"); got != "policy_unavailable" {
			t.Errorf("without policy: %q", got)
		}
	})
}

// Case X9. The gateway cannot read the server's list. A call to a tool that the session has not listed is refused,
// whether or not the tool is hidden.
func TestCall_IsRefusedWhenTheServerCannotBeListed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTestGateway(t)
		w.files.Discovery = nil
		h := w.connect()
		w.Policy.Access = &policyv1.CheckServerResponse{CouldAllow: true}
		w.files.Open = func(upstream.Request) (upstream.Answer, error) { return upstream.Answer{}, upstream.ErrNeverSent }
		for _, tool := range []string{"safe", "secret-a", "absent"} {
			if got := w.do("POST", "/mcp/files", strings.Replace(toolCall, "safe", tool, 1), h); got.code() != "upstream_unavailable" {
				t.Errorf("%s: %s", tool, got.body)
			}
		}
	})
}
