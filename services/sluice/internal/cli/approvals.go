package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	"github.com/sluice-mesh/sluice/services/internal/safetext"
)

func (t *tool) approvals() *cobra.Command {
	return group("approvals", "List calls that wait for a person, and decide on them", t.approvalsList(), t.approvalsShow(),
		t.approvalsDecide("approve ID", "Approve a call", approvalv1.Verdict_VERDICT_APPROVE),
		t.approvalsDecide("deny ID", "Deny a call", approvalv1.Verdict_VERDICT_DENY), t.approvalsResolve(), t.approvalsCancel(),
		t.approvalsWatch())
}

func (t *tool) approvalClient() (approvalv1.ApprovalServiceClient, func(), error) {
	f, err := t.load()
	if err != nil {
		return nil, nil, err
	}
	conn, err := t.dial(f, authv1.Role_ROLE_APPROVAL)
	if err != nil {
		return nil, nil, err
	}
	return approvalv1.NewApprovalServiceClient(conn), func() { _ = conn.Close() }, nil
}

// filterFlags adds the flags that select approvals. The parameter forMe is the help text of --for-me.
func (t *tool) filterFlags(c *cobra.Command, f *approvalv1.ApprovalFilter, forMe string) {
	c.Flags().StringVar(&f.Server, "server", "", "only this server")
	c.Flags().StringVar(&f.Name, "tool", "", "only this tool")
	c.Flags().StringVar(&f.Subject, "subject", "", "only this subject")
	c.Flags().BoolVar(&f.ForMe, "for-me", false, forMe)
	_ = c.RegisterFlagCompletionFunc("server", t.completeServer)
}

func (t *tool) approvalsList() *cobra.Command {
	var states []string
	var n int32
	var all bool
	filter := new(approvalv1.ApprovalFilter)
	c := &cobra.Command{
		Use: "list", Short: "List approvals that have not ended", Args: args(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			var err error
			if filter.States, err = statesOf(states, all); err != nil {
				return err
			}
			client, done, err := t.approvalClient()
			if err != nil {
				return err
			}
			defer done()
			ctx, cancel := requestContext(c.Context())
			defer cancel()
			resp, err := client.ListApprovals(ctx, &approvalv1.ListApprovalsRequest{Filter: filter, PageSize: n})
			if err != nil {
				return t.explainError(err)
			}
			return t.printApprovals(resp)
		},
	}
	c.Flags().Int32VarP(&n, "lines", "n", 100, "the maximum number, up to 1000")
	c.Flags().StringSliceVar(&states, "state", nil, "only approvals in these states: "+strings.Join(stateNames(), ", "))
	c.Flags().BoolVar(&all, "all", false, "also list ended approvals")
	c.MarkFlagsMutuallyExclusive("state", "all")
	_ = c.RegisterFlagCompletionFunc("state", cobra.FixedCompletions(stateNames(), cobra.ShellCompDirectiveNoFileComp))
	t.filterFlags(c, filter, "only approvals that you may decide on now")
	return c
}

// statesOf returns the states with the given names. If there are no names, it returns the states of approvals that have
// not ended, or nil if all is true.
func statesOf(names []string, all bool) ([]approvalv1.ApprovalState, error) {
	if len(names) == 0 && !all {
		names = []string{"pending", "approved", "claimed", "outcome_unknown"}
	}
	var out []approvalv1.ApprovalState
	for _, name := range names {
		n, ok := approvalv1.ApprovalState_value[statePrefix+strings.ToUpper(name)]
		if !ok || n == 0 {
			return nil, usageError{fmt.Errorf("--state must be one of %s, is %q", strings.Join(stateNames(), ", "), name)}
		}
		out = append(out, approvalv1.ApprovalState(n))
	}
	return out, nil
}

func (t *tool) printApprovals(resp *approvalv1.ListApprovalsResponse) error {
	if resp.GetNextPageToken() != "" {
		fmt.Fprintln(t.errOut, "sluice: older approvals are not listed: list more with -n, or select fewer with other flags")
	}
	if t.json() {
		out := make([]safetext.Approval, len(resp.GetApprovals()))
		for i, a := range resp.GetApprovals() {
			out[i] = safetext.ApprovalOf(a)
		}
		return t.printJSON(out)
	}
	rows := make([][]string, len(resp.GetApprovals()))
	for i, a := range resp.GetApprovals() {
		rows[i] = approvalCells(a)
	}
	return t.table(approvalColumns(), rows)
}

func (t *tool) approvalsShow() *cobra.Command {
	return &cobra.Command{
		Use: "show ID", Short: "Print an approval with its whole call and its history", Args: args(cobra.ExactArgs(1)),
		ValidArgsFunction: t.completeApproval(),
		RunE: func(c *cobra.Command, given []string) error {
			client, done, err := t.approvalClient()
			if err != nil {
				return err
			}
			defer done()
			ctx, cancel := requestContext(c.Context())
			defer cancel()
			seen, err := t.readApproval(ctx, client, given[0])
			if err != nil {
				return err
			}
			if t.json() {
				return t.printJSON(seen.jsonOutput())
			}
			seen.print(t.out)
			return nil
		},
	}
}
