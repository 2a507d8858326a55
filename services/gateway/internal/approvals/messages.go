package approvals

import (
	"fmt"
	"math"
	"slices"
	"time"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
)

// Unavailable returns the refusal for a call whose approval can't be requested or used.
func Unavailable() *refusal.Refusal {
	return &refusal.Refusal{Code: commonv1.Code_CODE_APPROVAL_UNAVAILABLE}
}

// translateRefusal converts the approval service's refusal into a refusal for the caller. It never returns nil, even if
// the service's refusal is empty.
func (w *Client) translateRefusal(r *approvalv1.Refusal) *refusal.Refusal {
	if r.GetCode() == commonv1.Code_CODE_UNSPECIFIED {
		return Unavailable()
	}
	a := r.GetApproval()
	out := &refusal.Refusal{Code: r.GetCode(), Message: r.GetMessage(), RetryAfter: r.GetRetryAfter().AsDuration()}
	if a != nil {
		out.Approval, out.Rule, out.PolicyRevision = approvalTicket(a), a.GetRule(), a.GetPolicyRevision()
	}
	switch {
	case out.Code == commonv1.Code_CODE_TOO_MANY_PENDING && out.Message == "":
		out.Message = w.tooManyText()
	case a == nil:
	case out.Code == commonv1.Code_CODE_APPROVAL_PENDING:
		out.Message = pendingText(a)
	case out.Code == commonv1.Code_CODE_APPROVAL_DENIED:
		out.Message, out.RetryAfter = deniedText(a), 0
	}
	return out
}

func refusalFor(a *approvalv1.Approval) *refusal.Refusal {
	out := &refusal.Refusal{Code: a.GetCode(), Message: a.GetReason(), Approval: approvalTicket(a), Rule: a.GetRule(), PolicyRevision: a.GetPolicyRevision()}
	switch out.Code { //nolint:exhaustive // every other code uses the approval's reason
	case commonv1.Code_CODE_UNSPECIFIED: // the call has just been approved, and the next call can use the approval
		out.Code, out.Message = commonv1.Code_CODE_APPROVAL_PENDING, pendingText(a)
	case commonv1.Code_CODE_APPROVAL_PENDING:
		out.Message = pendingText(a)
	case commonv1.Code_CODE_APPROVAL_DENIED:
		out.Message = deniedText(a)
	case commonv1.Code_CODE_APPROVAL_USED:
		out.Message = ""
	}
	return out
}

func approvalTicket(a *approvalv1.Approval) *refusal.Approval {
	t := &refusal.Approval{ID: a.GetId(), URL: a.GetUrl()}
	if at := a.GetDecideBefore(); at != nil {
		t.Expires = at.AsTime()
	}
	if at := a.GetExecuteBefore(); at != nil {
		t.Expires = at.AsTime()
	}
	if at := a.GetDeniedUntil(); at != nil {
		t.DeniedUntil = at.AsTime()
	}
	return t
}

// WaitAdvice begins the last sentence of the message about a call that waits for a person. That sentence tells MCP
// clients how to wait for the decision.
const WaitAdvice = " To wait without sending them again, call "

func pendingText(a *approvalv1.Approval) string {
	text := "a person must approve this call"
	if why := a.GetMessage(); why != "" {
		text += " (" + why + ")"
	}
	// The message must not claim that a person was notified, because the gateway does not know whether a notification
	// was sent or read.
	text += ". It waits in the list of approvals (`sluice approvals list`): tell your user, so that a person looks there. "
	// The client has called another method, not tools/call, so it may not support tools.
	if method := a.GetMethod(); method != "" && method != mcp.MethodToolsCall {
		return text + "Make the same request again later: it is carried out once it is approved."
	}
	return text + "Call the same tool again later with the same arguments: it runs once it is approved." +
		WaitAdvice + mcp.ToolApprovalWait + ` with {"id":"` + a.GetId() + `"}.`
}

func (w *Client) tooManyText() string {
	return fmt.Sprintf("%d calls of this caller, or of those it works for, wait for approval already, which is the limit (approvals.max_pending). "+
		"Wait for one of them with %s, or until people have decided, and then make this call again.", w.cfg.MaxPending, mcp.ToolApprovalWait)
}

// deniedText returns the message about a denied call. The message states how long equal calls will be denied.
func deniedText(a *approvalv1.Approval) string {
	text, remaining := refusal.Sentence(Denial(a)), time.Until(a.GetDeniedUntil().AsTime())
	if remaining <= 0 {
		return text + " Do not make the same call again."
	}
	return text + " The same call stays denied for another " + waitText(remaining) + ": do not make it again."
}

// Denial returns a text that states who denied the call and, if known, that person's reason.
func Denial(a *approvalv1.Approval) string {
	votes := a.GetVotes()
	at := slices.IndexFunc(votes, func(v *approvalv1.Vote) bool { return v.GetVerdict() == approvalv1.Verdict_VERDICT_DENY })
	switch {
	case at < 0 && a.GetReason() == "":
		return "denied"
	case at < 0:
		return "denied: " + a.GetReason()
	case votes[at].GetChannel() == approvalv1.VoteChannel_VOTE_CHANNEL_ELICITATION:
		return "declined at the agent"
	}
	text := "denied by " + votes[at].GetSubject()
	if why := votes[at].GetComment(); why != "" {
		text += ": " + why
	}
	return text
}

// waitText formats a waiting time, which it rounds up. It uses seconds for times below two minutes, and minutes for
// longer times.
func waitText(d time.Duration) string {
	if seconds := math.Ceil(d.Seconds()); seconds < 120 {
		return fmt.Sprintf("%.0f s", seconds)
	}
	return fmt.Sprintf("%.0f minutes", math.Ceil(d.Minutes()))
}
