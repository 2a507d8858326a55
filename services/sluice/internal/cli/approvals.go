package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	"google.golang.org/grpc"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	"github.com/sluice-mesh/sluice/services/internal/viewtext"
)

func (t *tool) approvals() *cobra.Command {
	return group("approvals", "Show what waits for a person, and decide", t.approvalsList(), t.approvalsShow(),
		t.approvalsDecide("approve ID", "Let a call run", approvalv1.Verdict_VERDICT_APPROVE),
		t.approvalsDecide("deny ID", "Refuse a call", approvalv1.Verdict_VERDICT_DENY), t.approvalsResolve(), t.approvalsCancel(),
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

// filterFlags adds the flags that pick approvals.
func (t *tool) filterFlags(c *cobra.Command, f *approvalv1.ApprovalFilter) {
	c.Flags().StringVar(&f.Server, "server", "", "only of this server")
	c.Flags().StringVar(&f.Name, "tool", "", "only of this tool")
	c.Flags().StringVar(&f.Subject, "subject", "", "only of this subject")
	c.Flags().BoolVar(&f.ForMe, "for-me", false, "only those that you may decide on now")
	_ = c.RegisterFlagCompletionFunc("server", t.completeServer)
}

func (t *tool) approvalsList() *cobra.Command {
	var states []string
	var n int32
	var all bool
	filter := new(approvalv1.ApprovalFilter)
	c := &cobra.Command{
		Use: "list", Short: "List what waits for a person; with --all what has ended too", Args: args(cobra.NoArgs),
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
			ctx, cancel := ask(c.Context())
			defer cancel()
			resp, err := client.List(ctx, &approvalv1.ListRequest{Filter: filter, PageSize: n})
			if err != nil {
				return explain(err)
			}
			return t.printApprovals(resp)
		},
	}
	c.Flags().Int32VarP(&n, "lines", "n", 100, "how many at the most, up to 1000")
	c.Flags().StringSliceVar(&states, "state", nil, "only in these states: "+strings.Join(stateNames(), ", "))
	c.Flags().BoolVar(&all, "all", false, "in every state")
	c.MarkFlagsMutuallyExclusive("state", "all")
	_ = c.RegisterFlagCompletionFunc("state", cobra.FixedCompletions(stateNames(), cobra.ShellCompDirectiveNoFileComp))
	t.filterFlags(c, filter)
	return c
}

// statesOf reads states by their names; without any, those that people wait for.
func statesOf(names []string, all bool) ([]approvalv1.ApprovalState, error) {
	if len(names) == 0 && !all {
		names = []string{"pending", "approved", "claimed", "outcome_unknown"}
	}
	var out []approvalv1.ApprovalState
	for _, name := range names {
		n, ok := approvalv1.ApprovalState_value[statePrefix+strings.ToUpper(name)]
		if !ok || n == 0 {
			return nil, usageError{fmt.Errorf("--state %q is none of %s", name, strings.Join(stateNames(), ", "))}
		}
		out = append(out, approvalv1.ApprovalState(n))
	}
	return out, nil
}

func (t *tool) printApprovals(resp *approvalv1.ListResponse) error {
	if t.json() {
		out := make([]viewtext.Approval, len(resp.GetApprovals()))
		for i, a := range resp.GetApprovals() {
			out[i] = viewtext.Of(a)
		}
		return t.printJSON(out)
	}
	rows := make([][]string, len(resp.GetApprovals()))
	for i, a := range resp.GetApprovals() {
		rows[i] = approvalRow(a)
	}
	if resp.GetNextPageToken() != "" {
		fmt.Fprintln(t.errOut, "sluice: there are older ones: ask for more with -n, or for fewer kinds with flags")
	}
	return t.table([]string{"ASKED", "STATE", "WHO", "WHAT", "MISSING", "UNTIL", "NOTE", "ID"}, rows)
}

func (t *tool) approvalsShow() *cobra.Command {
	return &cobra.Command{
		Use: "show ID", Short: "Print what a person must see before deciding, and the history", Args: args(cobra.ExactArgs(1)),
		ValidArgsFunction: t.completeApproval(),
		RunE: func(c *cobra.Command, given []string) error {
			client, done, err := t.approvalClient()
			if err != nil {
				return err
			}
			defer done()
			ctx, cancel := ask(c.Context())
			defer cancel()
			seen, err := see(ctx, client, given[0])
			if err != nil {
				return explain(err)
			}
			if t.json() {
				return t.printJSON(seen.document())
			}
			seen.print(t.out)
			return nil
		},
	}
}

func (t *tool) approvalsDecide(use, short string, verdict approvalv1.Verdict) *cobra.Command {
	var comment string
	var sure bool
	c := &cobra.Command{
		Use: use, Short: short + "; shows it first, and asks where you sit at a terminal", Args: args(cobra.ExactArgs(1)),
		ValidArgsFunction: t.completeApproval(approvalv1.ApprovalState_APPROVAL_STATE_PENDING),
		RunE: func(c *cobra.Command, given []string) error {
			client, done, err := t.approvalClient()
			if err != nil {
				return err
			}
			defer done()
			return t.decide(c.Context(), client, ballot{id: given[0], verdict: verdict, comment: comment, sure: sure})
		},
	}
	c.Flags().StringVarP(&comment, "comment", "m", "", "why; whoever asked is told that of a denial")
	c.Flags().BoolVarP(&sure, "yes", "y", false, "do not ask")
	return c
}

// ballot is what the person at the command line says.
type ballot struct {
	id      string
	verdict approvalv1.Verdict
	comment string
	// sure says that the person is not to be asked.
	sure bool
}

// decide shows what is decided on and casts the vote on just that.
func (t *tool) decide(ctx context.Context, client approvalv1.ApprovalServiceClient, b ballot) error {
	seen, err := t.show(ctx, client, b.id)
	if err != nil {
		return err
	}
	if err := t.confirm(ctx, b.sure); err != nil {
		return err
	}
	inTime, cancel := ask(ctx)
	defer cancel()
	resp, err := client.Decide(inTime, &approvalv1.DecideRequest{ApprovalId: b.id, Verdict: b.verdict, ViewDigest: seen.digest, Comment: b.comment})
	if err != nil {
		return explain(err)
	}
	if t.json() {
		return t.printJSON(viewtext.Of(resp.GetApproval()))
	}
	_, err = fmt.Fprintf(t.out, "%s is %s%s\n", b.id, stateName(resp.GetApproval().GetState()), missing(resp.GetApproval()))
	return err
}

// show prints an approval for a person, who then decides on just that.
func (t *tool) show(ctx context.Context, client approvalv1.ApprovalServiceClient, id string) (*seen, error) {
	inTime, cancel := ask(ctx)
	defer cancel()
	seen, err := see(inTime, client, id)
	if err != nil {
		return nil, explain(err)
	}
	if !t.json() {
		seen.print(t.out)
	}
	return seen, nil
}

// confirm asks a person who sits at a terminal whether to go on.
func (t *tool) confirm(ctx context.Context, sure bool) error {
	if sure || t.json() || !term.IsTerminal(int(os.Stdin.Fd())) {
		return nil
	}
	if answer, err := t.prompt(ctx, "Type yes to go on: "); err != nil || answer != "yes" {
		return errors.Join(errors.New("nothing was decided"), err)
	}
	return nil
}

func missing(a *approvalv1.Approval) string {
	if n := a.GetVotesMissing(); n > 0 && a.GetState() == approvalv1.ApprovalState_APPROVAL_STATE_PENDING {
		return fmt.Sprintf(": %d more must agree", n)
	}
	return ""
}

// prompt asks the person and reads a line; it ends with ctx.
func (t *tool) prompt(ctx context.Context, text string) (string, error) {
	fmt.Fprint(t.errOut, text)
	line := make(chan string, 1)
	go func() { // ends with the process where nobody answers
		text, _ := bufio.NewReader(os.Stdin).ReadString('\n')
		line <- text
	}()
	select {
	case text := <-line:
		return strings.TrimSpace(text), nil
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

func (t *tool) approvalsWatch() *cobra.Command {
	filter := new(approvalv1.ApprovalFilter)
	c := &cobra.Command{
		Use: "watch", Short: "Print what waits for a person, and every move, as it happens", Args: args(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			client, done, err := t.approvalClient()
			if err != nil {
				return err
			}
			defer done()
			return t.watchApprovals(c.Context(), client, filter)
		},
	}
	t.filterFlags(c, filter)
	return c
}

// watchApprovals follows the moves, over breaks of the way to the service.
func (t *tool) watchApprovals(ctx context.Context, client approvalv1.ApprovalServiceClient, filter *approvalv1.ApprovalFilter) error {
	const pause = time.Second
	var cursor string
	for {
		stream, err := client.Watch(ctx, &approvalv1.WatchRequest{Filter: filter, Cursor: cursor})
		if err == nil {
			err = t.follow(stream, &cursor)
		}
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the person has seen enough
		}
		if cursor == "" || !away(err) {
			return explain(err)
		}
		fmt.Fprintln(t.errOut, "sluice: the mesh is away; trying again")
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
}

func (t *tool) follow(stream grpc.ServerStreamingClient[approvalv1.WatchResponse], cursor *string) error {
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if m.GetCursor() != "" {
			*cursor = m.GetCursor()
		}
		switch a := m.GetApproval(); {
		case a == nil:
		case t.json():
			err = t.printLine(viewtext.Of(a))
		default:
			_, err = fmt.Fprintln(t.out, printable(strings.Join(approvalRow(a), "  ")))
		}
		if err != nil {
			return err
		}
	}
}
