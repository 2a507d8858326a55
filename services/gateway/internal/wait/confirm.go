package wait

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/internal/viewtext"
)

const (
	// maxShown is how many bytes whoever sits at an agent is shown. What is longer
	// would be cut by some client, and nobody confirms what was cut.
	maxShown = 8 << 10
	// answerTimeout bounds passing an answer on.
	answerTimeout = 5 * askTimeout
)

// Answer is the word of whoever sits at the agent. The zero value is none.
type Answer int

const (
	// Unanswered means that nobody has said anything.
	Unanswered Answer = iota
	// Confirmed means that the call may run.
	Confirmed
	// Declined means that it must not.
	Declined
)

// Confirm shows a text to whoever sits at the agent and returns the answer. It
// returns when ctx ends.
type Confirm func(ctx context.Context, text string) Answer

// word is an answer, and how the approval stood when it was passed on; nil where it
// was not.
type word struct {
	answer   Answer
	approval *approvalv1.Approval
}

// confirming asks whoever sits at the agent while the call is held, where the terms
// let that person decide. What comes of the answer the watch tells, as with every
// other vote. The returned function ends the question and returns what was said.
func (w *Waiter) confirming(ctx context.Context, q Question, a *approvalv1.Approval) (end func() word) {
	if terms := a.GetTerms(); q.Confirm == nil || !terms.GetSelfConfirm() || terms.GetQuorum() != 1 {
		return func() word { return word{} }
	}
	ctx, cancel := context.WithCancel(ctx)
	said := make(chan word, 1)
	go func() { said <- w.confirm(ctx, q, a) }()
	return func() word {
		cancel()
		return <-said
	}
}

func (w *Waiter) confirm(ctx context.Context, q Question, a *approvalv1.Approval) word {
	text := w.shown(ctx, a)
	if text == "" {
		return word{}
	}
	said := word{answer: q.Confirm(ctx, text)}
	if said.answer == Unanswered {
		return said
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerTimeout) // a word that was given is passed on
	defer cancel()
	said.approval = w.pass(ctx, q, a.GetId(), said.answer)
	return said
}

var verdicts = map[Answer]approvalv1.Verdict{
	Confirmed: approvalv1.Verdict_VERDICT_APPROVE,
	Declined:  approvalv1.Verdict_VERDICT_DENY,
}

// pass passes an answer on, and returns the approval as it stands then; nil where that
// is not known. It tries until policy and the approval service answer, or ctx ends.
func (w *Waiter) pass(ctx context.Context, q Question, id string, answer Answer) (a *approvalv1.Approval) {
	err := w.tell(ctx, func(ctx context.Context) error {
		resp, refused, err := w.ask(ctx, q, &approvalv1.RequestApprovalRequest{SelfVote: &approvalv1.SelfVote{ApprovalId: id, Verdict: verdicts[answer]}})
		switch {
		case refused != nil:
			return errNoPolicy
		case resp == nil && err == nil && answer == Declined: // policy asks nobody any more, and somebody has said no
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
	return a
}

// errNoPolicy means that policy decides nothing at the moment.
var errNoPolicy = status.Error(codes.Unavailable, "policy does not decide")

// shown is what people are shown of a call; empty where it can't be shown whole.
func (w *Waiter) shown(ctx context.Context, a *approvalv1.Approval) string {
	inTime, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	resp, err := w.client.GetApproval(inTime, &approvalv1.GetApprovalRequest{ApprovalId: a.GetId(), View: true})
	view := resp.GetView()
	if err != nil || view == nil || view.GetNextOffset() != 0 {
		w.log.WarnContext(ctx, "nobody at the agent was asked: the call could not be shown", "approval_id", a.GetId(), "error", err)
		return ""
	}
	view = proto.CloneOf(view)
	view.ServerIdentity = "" // an agent that knows it could go there without asking
	text := viewtext.Facts(view) + "\n" + view.GetParams()
	if len(text) > maxShown {
		w.log.InfoContext(ctx, "nobody at the agent was asked: the call is too long to be shown there", "approval_id", a.GetId(), "bytes", len(text))
		return ""
	}
	return text
}

// declined is the refusal of a call that whoever sits at the agent does not want,
// whatever others say.
func declined(a *approvalv1.Approval) *refusal.Refusal {
	return &refusal.Refusal{
		Code: commonv1.Code_CODE_APPROVAL_DENIED, Message: "declined at the agent. Do not make the same call again.",
		Approval: ticket(a), Rule: a.GetRule(), PolicyRevision: a.GetPolicyRevision(),
	}
}
