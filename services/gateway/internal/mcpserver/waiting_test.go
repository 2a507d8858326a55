package mcpserver_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/gatewaytest"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

const toolsList = `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`

// requireApproval returns a policy that requires an approval for calls to the given tools and hides all other tools.
func requireApproval(names ...string) func(*policyv1.FilterToolsRequest) (*policyv1.FilterToolsResponse, error) {
	return func(r *policyv1.FilterToolsRequest) (*policyv1.FilterToolsResponse, error) {
		resp := new(policyv1.FilterToolsResponse)
		for _, tool := range r.GetTools() {
			v := &policyv1.ToolVisibility{Name: tool.GetName()}
			if strings.Contains(" "+strings.Join(names, " ")+" ", " "+tool.GetName()+" ") {
				v.Visible, v.Code = true, commonv1.Code_CODE_APPROVAL_REQUIRED
			}
			resp.Tools = append(resp.Tools, v)
		}
		return resp, nil
	}
}

// Some servers end their lists with a null or empty cursor. The gateway must add its wait tool to such a last page.
func TestWaitTool_IsListedOnTheLastPage(t *testing.T) {
	t.Parallel()
	for cursor, last := range map[string]bool{`""`: true, `null`: true, `"x"`: false, `" "`: false} {
		t.Run(cursor, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newTestGateway(t)
				w.Policy.Filter = requireApproval("a")
				h := w.connect()
				w.files.Request = func(_ context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
					return gatewaytest.Result(r, `{"tools":[{"name":"a"}],"nextCursor":`+cursor+`}`), nil
				}
				if got := w.do("POST", "/mcp/files", toolsList, h); strings.Contains(got.body, "sluice_approval_wait") != last {
					t.Errorf("got %s", got.body)
				}
			})
		})
	}
}

// If one of the caller's calls may need an approval, the list contains the gateway's wait tool once, after the server's
// tools. If the server itself has a tool with that name, the server's tool is hidden.
func TestWaitTool_IsListedWhenACallMayWait(t *testing.T) {
	t.Parallel()
	const own = `{"name":"sluice_approval_wait","title":`
	for name, tt := range map[string]struct {
		policy func(*policyv1.FilterToolsRequest) (*policyv1.FilterToolsResponse, error)
		pages  []string
		// want is the beginning of each page's tools. It ends with own if the gateway's tool follows.
		want []string
	}{
		"nothing waits":            {nil, []string{`[{"name":"a"}]`}, []string{`[{"name":"a"}]`}},
		"one waits":                {requireApproval("a"), []string{`[ {"name":"a"} , {"name":"b"} ]`}, []string{`[ {"name":"a"} ,` + own}},
		"what waits is hidden":     {requireApproval("c"), []string{`[{"name":"a"}]`}, []string{`[]`}},
		"the server has the name":  {requireApproval("a", "sluice_approval_wait"), []string{`[{"name":"sluice_approval_wait"},{"name":"a"}]`}, []string{`[{"name":"a"},` + own}},
		"only the server's waits":  {requireApproval("sluice_approval_wait"), []string{`[{"name":"sluice_approval_wait"}]`}, []string{`[]`}},
		"on the last page":         {requireApproval("a"), []string{`[{"name":"a"}]`, `[{"name":"b"}]`}, []string{`[{"name":"a"}]`, `[` + own}},
		"a last page with nothing": {requireApproval("a"), []string{`[{"name":"a"}]`, `[]`}, []string{`[{"name":"a"}]`, `[` + own}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newTestGateway(t)
				if tt.policy != nil {
					w.Policy.Filter = tt.policy
				}
				h, page := w.connect(), 0
				w.files.Request = func(_ context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
					page++
					if page < len(tt.pages) {
						return gatewaytest.Result(r, `{"tools":`+tt.pages[page-1]+`,"nextCursor":"x"}`), nil
					}
					return gatewaytest.Result(r, `{"tools":`+tt.pages[page-1]+`}`), nil
				}
				for _, want := range tt.want {
					got := w.do("POST", "/mcp/files", toolsList, h)
					if want = `{"jsonrpc":"2.0","id":1,"result":{"tools":` + want; !strings.HasPrefix(got.body, want) {
						t.Errorf("got  %s\nwant %s", got.body, want)
					}
					if n := strings.Count(got.body, own); n != strings.Count(want, own) {
						t.Errorf("%d tools to wait with: %s", n, got.body)
					}
					gatewaytest.Raw(got.body) // Raw fails the test if the answer cannot be parsed
				}
			})
		})
	}
}

func waitCall(arguments string) string {
	return `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"sluice_approval_wait","arguments":` + arguments + `,"_meta":{"progressToken":7}}}`
}

const patient = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"patient one","version":"1"}}}`

func newWaitApproval(state approvalv1.ApprovalState) *approvalv1.Approval {
	a := &approvalv1.Approval{
		Id: "a-1", Name: "pay", State: state, DecideBefore: timestamppb.New(time.Unix(1, 0)), ExecuteBefore: timestamppb.New(time.Unix(2, 0)),
	}
	if state == approvalv1.ApprovalState_APPROVAL_STATE_DENIED {
		a.DeniedUntil = timestamppb.New(time.Unix(3, 0))
		a.Reason, a.Votes = "too much", []*approvalv1.Vote{{Subject: "ben", Verdict: approvalv1.Verdict_VERDICT_DENY, Comment: "too much"}}
	}
	return a
}

// The wait tool waits for at most as long as the gateway holds a call. Then it returns the approval's state. It sends
// no request to a server.
func TestWaitTool_WaitsForAnApproval(t *testing.T) {
	t.Parallel()
	const (
		waits    = approvalv1.ApprovalState_APPROVAL_STATE_PENDING
		approved = approvalv1.ApprovalState_APPROVAL_STATE_APPROVED
		denied   = approvalv1.ApprovalState_APPROVAL_STATE_DENIED
	)
	for name, tt := range map[string]struct {
		client        string
		now, then     approvalv1.ApprovalState
		took          time.Duration
		says, program string
	}{
		"approved meanwhile":   {patient, waits, approved, 12 * time.Second, "is approved. Make it again with the same arguments now", `{"id":"a-1","state":"approved","tool":"pay","expiresAt":"1970-01-01T00:00:02Z"}`},
		"approved already":     {patient, approved, approved, 0, "is approved.", `"state":"approved"`},
		"denied meanwhile":     {patient, waits, denied, 12 * time.Second, "The call of pay was denied by ben: too much. Do not make it again.", `"state":"denied","tool":"pay","expiresAt":"1970-01-01T00:00:02Z","deniedUntil":"1970-01-01T00:00:03Z"`},
		"no decision":          {patient, waits, waits, 35 * time.Second, "still waits for people. Call this tool again", `"state":"pending","tool":"pay","expiresAt":"1970-01-01T00:00:01Z"`},
		"a client in a hurry":  {initialize, waits, waits, 0, "still waits for people.", `"state":"pending"`},
		"its outcome is open":  {patient, approvalv1.ApprovalState_APPROVAL_STATE_OUTCOME_UNKNOWN, waits, 0, "whether it ran is not known", `"state":"outcome_unknown"`},
		"it has run meanwhile": {patient, approvalv1.ApprovalState_APPROVAL_STATE_DONE, waits, 0, "has run.", `"state":"done"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newTestGateway(t)
				w.Approvals.Set(newWaitApproval(tt.now))
				w.files.Request = func(context.Context, upstream.Request, func([]byte)) (upstream.Answer, error) {
					t.Error("it reached the server")
					return upstream.Answer{}, errBoom
				}
				if tt.then != waits {
					time.AfterFunc(12*time.Second, func() { w.Approvals.Set(newWaitApproval(tt.then)) })
				}
				h, begin := w.connectAs(tt.client), time.Now()
				got := w.do("POST", "/mcp/files", waitCall(`{"id":"a-1"}`), h)
				if took := time.Since(begin); took != tt.took {
					t.Errorf("it took %v", took)
				}
				if !strings.Contains(got.body, tt.says) || !strings.Contains(got.body, tt.program) || strings.Contains(got.body, "isError") {
					t.Errorf("answered %s", got.body)
				}
				if progress := strings.Count(got.body, "notifications/progress"); progress != int(tt.took/(10*time.Second)) {
					t.Errorf("%d times progress in %v", progress, tt.took)
				}
			})
		})
	}
}

// Case I4. The wait tool treats another caller's approval as unknown. It accepts no argument other than an id.
func TestWaitTool_RefusesApprovalsOfOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTestGateway(t)
		w.Approvals.Set(newWaitApproval(approvalv1.ApprovalState_APPROVAL_STATE_PENDING))
		ana := w.connectAs(patient)
		for arguments, code := range map[string]string{
			`{"id":"a-2"}`: "approval_expired", `{}`: "params_invalid", `{"id":""}`: "params_invalid", `{"id":7}`: "params_invalid",
			`{"ID":"a-1"}`: "params_invalid", `{"id":"a-1","x":1}`: "params_invalid", `null`: "params_invalid",
		} {
			if got := w.do("POST", "/mcp/files", waitCall(arguments), ana); got.status != http.StatusOK || got.code() != code || !strings.Contains(got.body, `"isError":true`) {
				t.Errorf("%s: %d %s", arguments, got.status, got.body)
			}
		}
		ben := http.Header{"Authorization": {"Bearer " + benToken}}
		ben.Set("Mcp-Session-Id", w.do("POST", "/mcp/files", initialize, ben).header.Get("Mcp-Session-Id"))
		if got := w.do("POST", "/mcp/files", waitCall(`{"id":"a-1"}`), ben); got.code() != "approval_expired" {
			t.Errorf("another's: %s", got.body)
		}
	})
}
