package approvals

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/attempt"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/internal/safetext"
)

const (
	// maxShown limits the size, in bytes, of a call that is shown to the person who uses the agent. Some clients
	// truncate longer messages, and people cannot confirm what they do not see.
	maxShown = 8 << 10
	// answerTimeout is how long the gateway tries to submit a user's answer to the approval service.
	answerTimeout = 5 * askTimeout
)

// userAnswer is the answer of the person who uses the agent. If that person has confirmed or declined the call,
// approval is the resulting state of the approval, or nil if this state is not known, and decision is the last decision
// of the policy service, or nil if there is none. If the person has not answered, both are nil.
type userAnswer struct {
	answer   attempt.Confirmation
	approval *approvalv1.Approval
	decision *policyv1.Decision
}

// startConfirm asks the person who uses the agent to confirm a call while the call is held, if the approval's terms
// allow that person to vote. The returned function stops asking and returns the person's answer. The vote changes the
// approval, and the watch on the approval reports this change as it does for all other votes. If the client does not
// answer in time, startConfirm calls endHold.
func (w *Client) startConfirm(ctx context.Context, q Request, a *approvalv1.Approval, endHold func()) (end func() userAnswer) {
	if terms := a.GetTerms(); q.Confirm == nil || !terms.GetSelfConfirm() || terms.GetQuorum() != 1 || terms.GetApproveWith() != nil {
		return func() userAnswer { return userAnswer{} }
	}
	ctx, cancel := context.WithCancel(ctx)
	answers := make(chan userAnswer, 1)
	go func() {
		answer := w.confirmWithUser(ctx, q, a)
		if answer.answer == attempt.Silent {
			endHold()
		}
		answers <- answer
	}()
	return func() userAnswer {
		cancel()
		return <-answers
	}
}

func (w *Client) confirmWithUser(ctx context.Context, q Request, a *approvalv1.Approval) userAnswer {
	text := w.callText(ctx, a)
	if text == "" {
		return userAnswer{}
	}
	answer := userAnswer{answer: q.Confirm(ctx, text)}
	if answer.answer != attempt.Confirmed && answer.answer != attempt.Declined {
		return answer
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerTimeout) // the answer is submitted in any case
	defer cancel()
	answer.approval, answer.decision = w.submitAnswer(ctx, q, a.GetId(), answer.answer)
	return answer
}

var verdicts = map[attempt.Confirmation]approvalv1.Verdict{
	attempt.Confirmed: approvalv1.Verdict_VERDICT_APPROVE,
	attempt.Declined:  approvalv1.Verdict_VERDICT_DENY,
}

// submitAnswer submits a user's answer to the approval service. It returns the approval after the vote, and the last
// decision of the policy service. The returned approval is nil if its state is not known. submitAnswer retries until
// both services answer or ctx is cancelled.
func (w *Client) submitAnswer(ctx context.Context, q Request, id string, answer attempt.Confirmation) (a *approvalv1.Approval, last *policyv1.Decision) {
	err := w.retry(ctx, func(ctx context.Context) error {
		resp, decision, refused, err := w.request(ctx, q, &approvalv1.RequestApprovalRequest{SelfVote: &approvalv1.SelfVote{ApprovalId: id, Verdict: verdicts[answer]}})
		if decision != nil {
			last = decision
		}
		switch {
		case refused != nil:
			return errNoPolicy
		// The policy no longer requires an approval, so there is nothing to vote on. The user has declined the call, so
		// the approval is cancelled.
		case resp == nil && err == nil && answer == attempt.Declined:
			cancelled, err := w.client.CancelApproval(ctx, &approvalv1.CancelApprovalRequest{ApprovalId: id, Reason: "declined at the agent"})
			a = cancelled.GetApproval()
			return err
		}
		a = resp.GetAsked().GetApproval()
		return err
	})
	if err != nil {
		w.log.WarnContext(ctx, "an answer at the agent was not passed on", "approval_id", id, "error", err)
	}
	return a, last
}

var errNoPolicy = status.Error(codes.Unavailable, "policy does not decide")

// callText returns a description of a call for the user. It returns "" if the call cannot be shown completely.
func (w *Client) callText(ctx context.Context, a *approvalv1.Approval) string {
	inTime, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	resp, err := w.client.GetApproval(inTime, &approvalv1.GetApprovalRequest{ApprovalId: a.GetId(), View: true})
	view := resp.GetView()
	if err != nil || view == nil || view.GetNextOffset() != 0 {
		w.log.WarnContext(ctx, "the user at the agent was not asked: the call cannot be shown", "approval_id", a.GetId(), "error", err)
		return ""
	}
	view = proto.CloneOf(view)
	view.ServerIdentity = "" // an agent that knows the identity could call the server without the gateway
	text := safetext.Facts(view) + "\n" + view.GetParams()
	if len(text) > maxShown {
		w.log.InfoContext(ctx, "the user at the agent was not asked: the call is too long to be shown", "approval_id", a.GetId(), "bytes", len(text))
		return ""
	}
	return text
}

// refusalAtAgent returns the refusal for a call that the person who uses the agent has declined. The refusal applies
// even if approvers approve the call.
func refusalAtAgent(a *approvalv1.Approval) *refusal.Refusal {
	return &refusal.Refusal{
		Code: commonv1.Code_CODE_APPROVAL_DENIED, Message: "declined at the agent. Do not make the same call again.",
		Approval: approvalTicket(a), Rule: a.GetRule(), PolicyRevision: a.GetPolicyRevision(),
	}
}
