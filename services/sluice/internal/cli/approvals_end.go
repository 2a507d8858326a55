package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	"github.com/sluice-mesh/sluice/services/internal/enum"
	"github.com/sluice-mesh/sluice/services/internal/safetext"
)

const defaultCancelReason = "cancelled on the command line"

func (t *tool) approvalsResolve() *cobra.Command {
	var comment string
	var ran, failed, assumeYes bool
	c := &cobra.Command{
		Use:   "resolve ID --done|--failed -m WHY",
		Short: "Record the outcome of a call whose outcome is unknown; shows the approval and asks at a terminal",
		Long: `Record the outcome of a call that was sent and whose outcome is unknown. First find out at the
server whether the call ran.`,
		Args:              args(cobra.ExactArgs(1)),
		ValidArgsFunction: t.completeApproval(approvalv1.ApprovalState_APPROVAL_STATE_OUTCOME_UNKNOWN),
		RunE: func(c *cobra.Command, given []string) error {
			to := approvalv1.Resolution_RESOLUTION_FAILED
			if ran {
				to = approvalv1.Resolution_RESOLUTION_DONE
			}
			return t.runApprovalAction(c.Context(), given[0], assumeYes, t.resolveAction(to, comment))
		},
	}
	c.Flags().BoolVar(&ran, "done", false, "the call ran")
	c.Flags().BoolVar(&failed, "failed", false, "the call did not run, or ran without effect")
	c.Flags().StringVarP(&comment, "comment", "m", "", "how you know the outcome, for the history (required)")
	c.Flags().BoolVarP(&assumeYes, "yes", "y", false, askOrYes)
	c.MarkFlagsMutuallyExclusive("done", "failed")
	c.MarkFlagsOneRequired("done", "failed")
	_ = c.MarkFlagRequired("comment")
	return c
}

func (t *tool) approvalsCancel() *cobra.Command {
	var reason string
	var assumeYes bool
	c := &cobra.Command{
		Use:   "cancel ID",
		Short: "Cancel an approval and its grant; shows the approval and asks at a terminal",
		Long: `Cancel an approval that is pending or approved, so that its call does not run. If the call is
made again, it needs a new approval. The command also ends the approval's grant, even if the
approval has ended.`,
		Args: args(cobra.ExactArgs(1)),
		ValidArgsFunction: t.completeApproval(
			approvalv1.ApprovalState_APPROVAL_STATE_PENDING, approvalv1.ApprovalState_APPROVAL_STATE_APPROVED,
		),
		RunE: func(c *cobra.Command, given []string) error {
			return t.runApprovalAction(c.Context(), given[0], assumeYes, t.cancelAction(reason))
		},
	}
	c.Flags().StringVarP(&reason, "comment", "m", defaultCancelReason, "the reason, for the history")
	c.Flags().BoolVarP(&assumeYes, "yes", "y", false, doNotAsk)
	return c
}

// approvalAction is an action on an approval. The command shows the approval before the action.
type approvalAction struct {
	question string
	// refuses is true if the action only prevents calls. Such an action needs no --yes without a terminal.
	refuses bool
	// do performs the action and returns a sentence about its result.
	do func(context.Context, approvalv1.ApprovalServiceClient, *approvalv1.Approval) (*approvalv1.Approval, string, error)
}

func (t *tool) resolveAction(to approvalv1.Resolution, comment string) approvalAction {
	want := approvalv1.ApprovalState_APPROVAL_STATE_FAILED
	if to == approvalv1.Resolution_RESOLUTION_DONE {
		want = approvalv1.ApprovalState_APPROVAL_STATE_DONE
	}
	return approvalAction{question: "Record this call as " + enum.Name(want) + "?", do: func(ctx context.Context, client approvalv1.ApprovalServiceClient, a *approvalv1.Approval) (*approvalv1.Approval, string, error) {
		if s := a.GetState(); s != approvalv1.ApprovalState_APPROVAL_STATE_OUTCOME_UNKNOWN && s != want {
			return nil, "", fmt.Errorf("%s is %s: only an approval in outcome_unknown can be resolved", a.GetId(), enum.Name(s))
		}
		resp, err := client.ResolveOutcome(ctx, &approvalv1.ResolveOutcomeRequest{ApprovalId: a.GetId(), Resolution: to, Comment: comment})
		if err != nil {
			return nil, "", t.explainError(err)
		}
		return resp.GetApproval(), "", nil
	}}
}

func (t *tool) cancelAction(reason string) approvalAction {
	return approvalAction{question: "Cancel this approval?", refuses: true, do: func(ctx context.Context, client approvalv1.ApprovalServiceClient, a *approvalv1.Approval) (*approvalv1.Approval, string, error) {
		resp, err := client.CancelApproval(ctx, &approvalv1.CancelApprovalRequest{ApprovalId: a.GetId(), Reason: reason})
		if status.Code(err) == codes.FailedPrecondition {
			return nil, "", fmt.Errorf("%s is %s and was not cancelled: %w", a.GetId(), enum.Name(a.GetState()), t.explainError(err))
		}
		if err != nil {
			return nil, "", t.explainError(err)
		}
		if resp.GetApproval().GetState() != approvalv1.ApprovalState_APPROVAL_STATE_CANCELLED {
			return resp.GetApproval(), ": its grant was cancelled", nil
		}
		return resp.GetApproval(), "", nil
	}}
}

func (t *tool) runApprovalAction(ctx context.Context, id string, assumeYes bool, end approvalAction) error {
	client, done, err := t.approvalClient()
	if err != nil {
		return err
	}
	defer done()
	return t.actOn(ctx, client, id, assumeYes, end)
}

// actOn shows an approval, asks the person for confirmation, and performs the action.
func (t *tool) actOn(ctx context.Context, client approvalv1.ApprovalServiceClient, id string, assumeYes bool, end approvalAction) error {
	seen, err := t.showApproval(ctx, client, id, assumeYes)
	if err != nil {
		return err
	}
	if err := t.confirm(ctx, assumeYes || end.refuses && !isInteractive(false), end.question); err != nil {
		return err
	}
	requestCtx, cancel := requestContext(ctx)
	defer cancel()
	a, detail, err := end.do(requestCtx, client, seen.resp.GetApproval())
	if err != nil {
		return err
	}
	if t.json() {
		return t.printJSON(safetext.ApprovalOf(a))
	}
	err = oneLine(t.out, "%s is %s%s", a.GetId(), enum.Name(a.GetState()), detail)
	return err
}

// completeApproval completes the ids of approvals in the given states, or in all states if no states are given.
func (t *tool) completeApproval(states ...approvalv1.ApprovalState) cobra.CompletionFunc {
	return func(c *cobra.Command, given []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(given) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		_ = t.checkFlags(c, nil) // errors in flags are ignored, so that completion still works
		client, done, err := t.approvalClient()
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		defer done()
		ctx, cancel := requestContext(c.Context())
		defer cancel()
		resp, err := client.ListApprovals(ctx, &approvalv1.ListApprovalsRequest{Filter: &approvalv1.ApprovalFilter{States: states}})
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var out []string
		for _, a := range resp.GetApprovals() {
			out = append(out, cobra.CompletionWithDesc(a.GetId(), safetext.Line(safetext.CallName(a.GetServer(), a.GetMethod(), a.GetName())+", "+enum.Name(a.GetState()))))
		}
		return out, cobra.ShellCompDirectiveNoFileComp
	}
}
