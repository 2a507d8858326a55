package telemetry_test

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	"github.com/sluice-mesh/sluice/services/e2e/rawmcp"
	"github.com/sluice-mesh/sluice/services/e2e/rawmesh"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
)

// decidePending waits until one call waits for approval, and then votes on it as the operator.
func decidePending(t *testing.T, a *rawmesh.Distributed, verdict approvalv1.Verdict) {
	t.Helper()
	people := approvalv1.NewApprovalServiceClient(a.DialWithToken(t, authv1.Role_ROLE_APPROVAL, stack.OperatorToken))
	var id string
	eventually.Holds(t, "one call is pending", func() bool {
		list, err := people.ListApprovals(stack.TimeoutContext(t), &approvalv1.ListApprovalsRequest{Filter: &approvalv1.ApprovalFilter{
			States: []approvalv1.ApprovalState{approvalv1.ApprovalState_APPROVAL_STATE_PENDING},
		}})
		if err != nil || len(list.GetApprovals()) != 1 {
			return false
		}
		id = list.GetApprovals()[0].GetId()
		return true
	})
	shown, err := people.GetApproval(stack.TimeoutContext(t), &approvalv1.GetApprovalRequest{ApprovalId: id, View: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := people.DecideApproval(stack.TimeoutContext(t), &approvalv1.DecideApprovalRequest{ApprovalId: id, Verdict: verdict, ViewDigest: shown.GetView().GetDigest()}); err != nil {
		t.Fatal(err)
	}
}

// awaitCounts waits until the metrics whose names begin with prefix have exactly the values in the map want.
func awaitCounts(t *testing.T, c *stack.Collector, prefix string, want map[string]int64) {
	t.Helper()
	var got map[string]int64
	for range 1000 {
		if got = c.Counts(prefix); maps.Equal(want, got) {
			return
		}
		<-time.After(10 * time.Millisecond)
	}
	t.Errorf("%s (-want +got):\n%s", prefix, cmp.Diff(want, got))
}

// The test makes four calls: one is approved, one is denied, one has an unknown outcome, and one expires. It checks the
// values of all metrics.
func TestMetrics_CountEachCallOnce(t *testing.T) {
	t.Parallel()
	c := stack.NewCollector(t)
	a := rawmesh.StartDistributed(t, rawmesh.PayPolicy, telemetryConfig(c, "sample: 0")+"\napprovals: {hold: 60s, decide: 10s}", stack.FastMetricExport)
	lost := func(w http.ResponseWriter, _ *http.Request, _ string) { w.WriteHeader(http.StatusInternalServerError) }
	answered := make(chan stack.Response, 1)
	cl := a.Connect(t)
	for n, story := range []struct {
		verdict approvalv1.Verdict
		answer  rawmcp.Answer
		code    string
	}{
		{approvalv1.Verdict_VERDICT_APPROVE, rawmcp.Result(`{"content":[]}`), ""},
		{approvalv1.Verdict_VERDICT_DENY, nil, "approval_denied"},
		{approvalv1.Verdict_VERDICT_APPROVE, lost, "outcome_unknown"},
		{approvalv1.Verdict_VERDICT_UNSPECIFIED, nil, "approval_expired"},
	} {
		a.Upstream.SetAnswer("pay", story.answer)
		go func() { answered <- cl.Call("pay", fmt.Sprintf(`{"n":%d}`, n)) }()
		if story.verdict != approvalv1.Verdict_VERDICT_UNSPECIFIED {
			decidePending(t, a, story.verdict)
		}
		resp := <-answered
		if resp.IsError(t) != (story.code != "") || story.code != "" && resp.Decision(t).Code != story.code {
			t.Fatalf("call %d: %s", n, resp.Body)
		}
	}
	const call, failed = "mcp.method.name=tools/call,network.transport=tcp", "error.type=tool_error,mcp.method.name=tools/call,network.transport=tcp"
	for prefix, want := range map[string]map[string]int64{
		"sluice.approval.": {
			"sluice.approval.open{sluice.approval.state=outcome_unknown}":         1,
			"sluice.approval.decisions{sluice.approval.outcome=approved}":         2,
			"sluice.approval.decisions{sluice.approval.outcome=denied}":           1,
			"sluice.approval.decisions{sluice.approval.outcome=expired}":          1,
			"sluice.approval.decision.duration{sluice.approval.outcome=approved}": 2,
			"sluice.approval.decision.duration{sluice.approval.outcome=denied}":   1,
			"sluice.approval.decision.duration{sluice.approval.outcome=expired}":  1,
			"sluice.approval.expired{sluice.approval.phase=decide}":               1,
			"sluice.approval.unknown_outcomes{}":                                  1,
		},
		"sluice.decisions": {
			"sluice.decisions{sluice.decision.effect=allow}":                                      2,
			"sluice.decisions{sluice.decision.code=approval_denied,sluice.decision.effect=deny}":  1,
			"sluice.decisions{sluice.decision.code=approval_expired,sluice.decision.effect=deny}": 1,
		},
		"sluice.hold.": {
			"sluice.hold.duration{sluice.approval.state=approved}": 2,
			"sluice.hold.duration{sluice.approval.state=denied}":   1,
			"sluice.hold.duration{sluice.approval.state=expired}":  1,
		},
		"mcp.server.": {
			"mcp.server.operation.duration{mcp.method.name=initialize,network.transport=tcp}":                1,
			"mcp.server.operation.duration{mcp.method.name=notifications/initialized,network.transport=tcp}": 1,
			"mcp.server.operation.duration{" + call + "}":                                                    1,
			"mcp.server.operation.duration{" + failed + "}":                                                  3,
		},
		"mcp.client.": {
			// The gateway opens one of these two sessions itself, in order to list the tools.
			"mcp.client.operation.duration{mcp.method.name=initialize,network.transport=tcp}":                2,
			"mcp.client.operation.duration{mcp.method.name=notifications/initialized,network.transport=tcp}": 2,
			"mcp.client.session.duration{mcp.protocol.version=2025-11-25,network.transport=tcp}":             1, // the gateway's session, which has ended
			// The gateway lists the tools again before it sends each of the two calls to the server.
			"mcp.client.operation.duration{mcp.method.name=tools/list,network.transport=tcp}": 3,
			"mcp.client.operation.duration{" + call + "}":                                     1,
			"mcp.client.operation.duration{error.type=outcome_unknown," + call + "}":          1,
		},
	} {
		awaitCounts(t, c, prefix, want)
	}
	for _, m := range c.Metrics() {
		for _, p := range m.Points {
			if m.Name == "sluice.approval.decision.duration" && p.Attributes["sluice.approval.outcome"] == "expired" && p.Sum != 10 {
				t.Errorf("approvers had %v s to decide", p.Sum)
			}
		}
	}
}

// A call is approved but never made, so its approval expires. The metrics count this expiry separately.
func TestMetrics_CountExpiredApprovals(t *testing.T) {
	t.Parallel()
	c := stack.NewCollector(t)
	t.Run("mesh", func(t *testing.T) { // the end of the subtest exports the remaining metrics
		f := rawmesh.Start(t, rawmesh.PayPolicy, telemetryConfig(c, "sample: 0")+"\napprovals: {hold: 0s, execute: 1s}")
		f.Connect(t).Call("pay", `{}`)
		if ran := f.RunApprovalsJSON(t, "approve", f.AwaitOnePending(t), "--yes"); ran.Code != 0 {
			t.Fatal(ran)
		}
		f.AwaitOnlyState(t, "expired")
	})
	for prefix, want := range map[string]map[string]int64{
		"sluice.approval.decision": {
			"sluice.approval.decisions{sluice.approval.outcome=approved}":         1,
			"sluice.approval.decision.duration{sluice.approval.outcome=approved}": 1,
		},
		"sluice.approval.expired": {"sluice.approval.expired{sluice.approval.phase=execute}": 1},
		"sluice.decisions":        {"sluice.decisions{sluice.decision.code=approval_pending,sluice.decision.effect=deny}": 1},
		"sluice.hold.":            {},
	} {
		awaitCounts(t, c, prefix, want)
	}
}

// Callers and servers send unknown methods, tools and codes. Nevertheless, the attributes of the metrics have only
// documented values. Unauthenticated requests are also counted.
func TestMetrics_AttributesHaveOnlyDocumentedValues(t *testing.T) {
	t.Parallel()
	c := stack.NewCollector(t)
	t.Run("mesh", func(t *testing.T) {
		f := rawmesh.StartUnpinned(t, "version: 1\nname: all\ndefault: allow\n", telemetryConfig(c, "sample: 0"))
		cl := f.Connect(t)
		f.Upstream.SetAnswer("odd", func(w http.ResponseWriter, _ *http.Request, id string) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":`+id+`,"error":{"code":-31999,"message":"x"}}`)
		})
		for n := range 20 {
			cl.Call(fmt.Sprintf("tool-%d", n), "{}")
			cl.Post(fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"strange/%d","params":{}}`, n))
		}
		cl.Call("odd", "{}")
		cl.Post(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","_meta":{"io.modelcontextprotocol/protocolVersion":"1999-01-01"}}}`)
		cl.Post(`{"`)
		cl.WithToken("nobody").Call("safe", "{}")
	})
	values := make(map[string]map[string]bool)
	for _, m := range c.Metrics() {
		for _, p := range m.Points {
			for key, value := range p.Attributes {
				if values[key] == nil {
					values[key] = make(map[string]bool)
				}
				values[key][value] = true
			}
		}
	}
	if methods := values["mcp.method.name"]; !methods["_OTHER"] || len(methods) > 5 {
		t.Errorf("the values of mcp.method.name are %v", methods)
	}
	if failures := values["error.type"]; !failures["_OTHER"] || !failures["-32022"] || len(failures) > 5 {
		t.Errorf("the values of error.type are %v", failures)
	}
	if codes := values["sluice.decision.code"]; !codes["unauthenticated"] || !codes["json_invalid"] || !codes["protocol_version"] {
		t.Errorf("the values of sluice.decision.code are %v", codes)
	}
}

// Calls succeed while the collector of metrics and spans is unavailable.
func TestMetrics_UnavailableCollectorAffectsNoCall(t *testing.T) {
	t.Parallel()
	f := rawmesh.Start(t, rawmesh.StoryPolicy, `telemetry: {otlp: "http://127.0.0.1:1", sample: 1}`)
	c := f.Connect(t)
	if resp := c.Call("safe", "{}"); resp.IsError(t) {
		t.Errorf("a call that policy allows: %s", resp.Body)
	}
	if d := c.Call("danger", "{}").Decision(t); d.Code != "denied_by_rule" {
		t.Errorf("a call that policy denies: %+v", d)
	}
}
