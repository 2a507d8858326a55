package dispatch

import (
	"context"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"google.golang.org/protobuf/types/known/timestamppb"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/approvals"
	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
)

// WaitTool is the definition of the gateway's own tool for waiting for approvals (docs/approvals.md).
const WaitTool = `{"name":"` + mcp.ToolApprovalWait + `","title":"Wait for an approval",` +
	`"description":"Waits until people have decided on a call that needs their approval, and returns its state. ` +
	`It runs nothing: once the call is approved, make it again with the same arguments.",` +
	`"inputSchema":{"type":"object","properties":{"id":{"type":"string","description":"The approval's id, from the answer that said to wait."}},"required":["id"],"additionalProperties":false},` +
	`"outputSchema":{"type":"object","properties":{"id":{"type":"string"},"state":{"type":"string"},"tool":{"type":"string"},"expiresAt":{"type":"string"},"deniedUntil":{"type":"string"}},"required":["id","state","tool"]},` +
	`"annotations":{"readOnlyHint":true,"destructiveHint":false,"idempotentHint":true,"openWorldHint":false}}`

type approvalState struct {
	ID    string `json:"id"`
	State string `json:"state"`
	Tool  string `json:"tool"`
	// ExpiresAt is the time by which approvers must decide on a pending approval, or by which a granted approval must
	// be used. It is zero if the approval has ended and was not granted.
	ExpiresAt time.Time `json:"expiresAt,omitzero"`
	// DeniedUntil is the time until which equal calls are denied. It is zero if no person has denied the call.
	DeniedUntil time.Time `json:"deniedUntil,omitzero"`
}

type textContent struct {
	Type string `json:"type"`
	Text string `json:"text"`
}

type waitResult struct {
	Version string         `json:"jsonrpc"`
	ID      jsontext.Value `json:"id"`
	Result  struct {
		Type       string        `json:"resultType,omitzero"`
		Content    []textContent `json:"content"`
		Structured approvalState `json:"structuredContent"`
	} `json:"result"`
}

// WaitForApproval executes a call to the gateway's own tool for waiting for approvals. It waits while the approval is
// pending, but not longer than the client's hold time. It returns the approval's state, which can still be pending.
func (x *Exchange) WaitForApproval(ctx context.Context) Response {
	if x.Stale {
		return x.Refuse(ctx, PolicyUnavailable())
	}
	var args struct {
		ID string `json:"id"`
	}
	if err := json.Unmarshal(x.Message.Arguments.Of(x.Message.Raw), &args, json.RejectUnknownMembers(true)); err != nil || args.ID == "" {
		return x.Refuse(ctx, &refusal.Refusal{Code: commonv1.Code_CODE_PARAMS_INVALID, Message: `give the approval's id, {"id": "…"}, and nothing else.`})
	}
	waitCtx, tracked := x.Session.BeginCall(ctx, jsonrpc.IDKey(x.ID()), nil)
	defer tracked.End()
	a, refused := x.Deps.Pipeline.WaitFor(waitCtx, approvals.WaitRequest{
		Principal: x.ActingPrincipal(), Approval: args.ID, Client: x.ClientName, Reply: x.NewRelay(),
	})
	if refused != nil {
		return x.Refuse(ctx, refused)
	}
	body, err := encodeApprovalState(x.ID(), a, x.ResultType)
	return x.OwnResponse(ctx, body, err)
}

func encodeApprovalState(id []byte, a *approvalv1.Approval, resultType string) ([]byte, error) {
	answer := waitResult{Version: "2.0", ID: id}
	answer.Result.Type = resultType
	state := states[a.GetState()]
	answer.Result.Structured = approvalState{
		ID: a.GetId(), State: state.name, Tool: a.GetName(), ExpiresAt: timeOf(a.GetExecuteBefore()), DeniedUntil: timeOf(a.GetDeniedUntil()),
	}
	if a.GetState() == approvalv1.ApprovalState_APPROVAL_STATE_PENDING {
		answer.Result.Structured.ExpiresAt = timeOf(a.GetDecideBefore())
	}
	words := "The call of " + a.GetName() + " " + state.text
	switch {
	case a.GetState() == approvalv1.ApprovalState_APPROVAL_STATE_DENIED:
		words += approvals.Denial(a)
	case a.GetReason() != "":
		words += " (" + a.GetReason() + ")"
	}
	answer.Result.Content = []textContent{{"text", refusal.Sentence(words) + " " + state.then}}
	return json.Marshal(answer)
}

func timeOf(t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.AsTime()
}

// states contains texts for each state of an approval: the name of the state, a description, and advice for the caller.
// The tool's result contains these texts.
var states = map[approvalv1.ApprovalState]struct{ name, text, then string }{
	approvalv1.ApprovalState_APPROVAL_STATE_PENDING:         {"pending", "still waits for people", "Call this tool again to keep waiting; people may take minutes."},
	approvalv1.ApprovalState_APPROVAL_STATE_APPROVED:        {"approved", "is approved", "Make it again with the same arguments now: it runs once."},
	approvalv1.ApprovalState_APPROVAL_STATE_DENIED:          {"denied", "was ", "Do not make it again."},
	approvalv1.ApprovalState_APPROVAL_STATE_EXPIRED:         {"expired", "was not decided, or not made, in time", "Making it again requests a new approval."},
	approvalv1.ApprovalState_APPROVAL_STATE_CANCELLED:       {"cancelled", "was cancelled", "Making it again requests a new approval."},
	approvalv1.ApprovalState_APPROVAL_STATE_CLAIMED:         {"claimed", "is running", "Its answer goes to the client that made it."},
	approvalv1.ApprovalState_APPROVAL_STATE_DONE:            {"done", "has run", "Making it again requests a new approval."},
	approvalv1.ApprovalState_APPROVAL_STATE_FAILED:          {"failed", "has run and failed", "Making it again requests a new approval."},
	approvalv1.ApprovalState_APPROVAL_STATE_OUTCOME_UNKNOWN: {"outcome_unknown", "was sent, and whether it ran is not known", "A person has to check."},
}
