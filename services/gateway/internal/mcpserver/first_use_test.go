package mcpserver_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/gatewaytest"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

// The gateway has failed to list a server's tools. Then the server lists its tools to a client's session. The gateway
// itself lists the server's tools before it answers the client, because a tool's first definition is accepted only from
// a complete list.
func TestFirstUse_ListsTheServerAgainWhenASessionGetsAnswers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTestGateway(t)
		there := switchAvailability(w.files)
		got := w.do("POST", "/mcp/files", initialize, nil)
		h := http.Header{"Mcp-Session-Id": got.header["Mcp-Session-Id"]}
		w.files.Request = func(_ context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
			return gatewaytest.Result(r, `{"tools":[{"name":"safe"}]}`), nil
		}
		time.AfterFunc(300*time.Millisecond, func() { there.Store(true) }) // available after two failures
		w.do("POST", "/mcp/files", list, h)
		whole := 0
		for _, report := range w.Catalog.Reports() {
			if report.Head.GetWhole() {
				whole++
			}
		}
		if whole != 1 {
			t.Errorf("the catalog got %d whole lists, want one", whole)
		}
	})
}

// A tool's first definition is accepted only if the gateway has read a complete list that contains it. While the
// gateway has no complete list, calls are refused, and the refusal says why. As soon as the gateway has a complete
// list, the policy service evaluates the call again.
func TestFirstUse_RefusalNamesWhyTheServerIsNotListed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTestGateway(t)
		there := switchAvailability(w.files)
		w.Policy.Decision = &policyv1.Decision{Effect: policyv1.Effect_EFFECT_DENY, Code: commonv1.Code_CODE_TOOL_CHANGED, Message: "an operator must accept it"}
		w.files.Request = func(_ context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
			if r.Method() == "tools/list" {
				return gatewaytest.Result(r, `{"tools":[{"name":"safe"}]}`), nil
			}
			return gatewaytest.Result(r, `{"content":[]}`), nil
		}
		h := http.Header{"Mcp-Session-Id": w.do("POST", "/mcp/files", initialize, nil).header["Mcp-Session-Id"]}
		w.do("POST", "/mcp/files", list, h)
		refuse := func(want string) {
			t.Helper()
			time.Sleep(time.Minute) // longer than the maximum pause between two listings
			if got := w.do("POST", "/mcp/files", toolCall, h).body; !strings.Contains(got, want) || strings.Contains(got, "operator must") != (want == `"tool_changed"`) {
				t.Errorf("the call is answered with %s, want %s", got, want)
			}
		}
		refuse("the gateway could not list the server's tools, so it can't tell whether this tool's definition is accepted: " + upstream.ErrNeverSent.Error())
		refuse(`"upstream_unavailable"`)
		there.Store(true)
		w.Catalog.Fail(errBoom)
		refuse(`"policy_unavailable"`)
		refuse("the policy service did not accept the list")
		w.Catalog.Fail(nil)
		before := len(w.Policy.Decided())
		refuse(`"tool_changed"`)
		if asked := len(w.Policy.Decided()) - before; asked != 2 {
			t.Errorf("policy was asked %d times, want once before the server was listed and once after", asked)
		}
		refuse(`"tool_changed"`)
	})
}
