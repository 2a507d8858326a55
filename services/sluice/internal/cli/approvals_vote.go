package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	"github.com/sluice-mesh/sluice/services/internal/enum"
	"github.com/sluice-mesh/sluice/services/internal/safetext"
)

// errNotConfirmed means that nothing was decided, for example because the person did not answer yes.
var errNotConfirmed = errors.New("nothing was decided")

// errNoTerminal is the error if a command must ask the person for confirmation, but has no terminal and was run without
// --yes.
var errNoTerminal = errors.New("there is no terminal to ask you at: add --yes to agree in advance")

// These are the help texts of --yes. Without a terminal, commands that let calls run need --yes.
const (
	doNotAsk = "do not ask"
	askOrYes = "do not ask; required without a terminal"
)

func (t *tool) approvalsDecide(use, short string, verdict approvalv1.Verdict) *cobra.Command {
	var comment string
	var assumeYes bool
	yes := askOrYes
	if verdict == approvalv1.Verdict_VERDICT_DENY {
		yes = doNotAsk
	}
	c := &cobra.Command{
		Use: use, Short: short + "; shows the approval and asks at a terminal", Args: args(cobra.ExactArgs(1)),
		ValidArgsFunction: t.completeApproval(approvalv1.ApprovalState_APPROVAL_STATE_PENDING),
		RunE: func(c *cobra.Command, given []string) error {
			client, done, err := t.approvalClient()
			if err != nil {
				return err
			}
			defer done()
			return t.decide(c.Context(), client, ballot{id: given[0], verdict: verdict, comment: comment, assumeYes: assumeYes})
		},
	}
	c.Flags().StringVarP(&comment, "comment", "m", "", "the reason; a denied caller gets it")
	c.Flags().BoolVarP(&assumeYes, "yes", "y", false, yes)
	return c
}

type ballot struct {
	id        string
	verdict   approvalv1.Verdict
	comment   string
	assumeYes bool
}

func (b *ballot) question() string {
	if b.verdict == approvalv1.Verdict_VERDICT_APPROVE {
		return "Approve this call?"
	}
	return "Deny this call?"
}

// decide shows an approval, asks the person for confirmation, and votes on exactly what it has shown.
func (t *tool) decide(ctx context.Context, client approvalv1.ApprovalServiceClient, b ballot) error {
	seen, err := t.showApproval(ctx, client, b.id, b.assumeYes)
	if err != nil {
		return err
	}
	before := seen.resp.GetApproval()
	if before.GetEnded() != nil {
		why := ""
		if before.GetReason() != "" {
			why = ": " + before.GetReason()
		}
		return fmt.Errorf("%w: %s has been %s since %s%s", errNotConfirmed, before.GetId(), enum.Name(before.GetState()), timeOfDay(before.GetEnded()), safetext.Line(why))
	}
	refuses := b.verdict == approvalv1.Verdict_VERDICT_DENY
	if err := t.confirm(ctx, b.assumeYes || refuses && !isInteractive(false), b.question()); err != nil {
		return err
	}
	requestCtx, cancel := requestContext(ctx)
	defer cancel()
	resp, err := client.DecideApproval(requestCtx, &approvalv1.DecideApprovalRequest{ApprovalId: before.GetId(), Verdict: b.verdict, ViewDigest: seen.digest, Comment: b.comment})
	if err != nil {
		return t.explainError(err)
	}
	if t.json() {
		return t.printJSON(safetext.ApprovalOf(resp.GetApproval()))
	}
	err = oneLine(t.out, "%s is %s%s", before.GetId(), enum.Name(resp.GetApproval().GetState()), voteSummary(before, resp))
	return err
}

// voteSummary returns the sentences that are printed after a vote. They say whether the person had already cast the
// same vote, how many more people must approve the call, and how long an approved call can run.
func voteSummary(before *approvalv1.Approval, resp *approvalv1.DecideApprovalResponse) string {
	var words []string
	if mine := resp.GetVote(); hasVote(before, mine) {
		words = append(words, fmt.Sprintf("you had already %s it at %s", verdictName(mine.GetVerdict()), timeOfDay(mine.GetTime())))
	}
	a := resp.GetApproval()
	if n := a.GetVotesMissing(); n > 0 && a.GetState() == approvalv1.ApprovalState_APPROVAL_STATE_PENDING {
		words = append(words, fmt.Sprintf("%d more people must approve it", n))
	}
	if a.GetState() == approvalv1.ApprovalState_APPROVAL_STATE_APPROVED {
		words = append(words, "the call runs once if its caller still waits for it or makes it again before "+timeOfDay(a.GetExecuteBefore()))
	}
	if words == nil {
		return ""
	}
	return ": " + strings.Join(words, "; ")
}

func hasVote(a *approvalv1.Approval, vote *approvalv1.Vote) bool {
	for _, v := range a.GetVotes() {
		if v.GetSubject() == vote.GetSubject() && v.GetVerdict() == vote.GetVerdict() && v.GetTime().AsTime().Equal(vote.GetTime().AsTime()) {
			return true
		}
	}
	return false
}

func verdictName(v approvalv1.Verdict) string {
	if v == approvalv1.Verdict_VERDICT_APPROVE {
		return "approved"
	}
	return "denied"
}

// showApproval reads and prints an approval before the person decides on it. If the output is JSON and the command will
// ask the person, showApproval prints the approval in readable form on standard error.
func (t *tool) showApproval(ctx context.Context, client approvalv1.ApprovalServiceClient, id string, assumeYes bool) (*shownApproval, error) {
	requestCtx, cancel := requestContext(ctx)
	defer cancel()
	seen, err := t.readApproval(requestCtx, client, id)
	if err != nil {
		return nil, err
	}
	if !t.json() {
		seen.print(t.out)
	} else if isInteractive(assumeYes) {
		seen.print(t.errOut)
	}
	return seen, nil
}

// isInteractive reports whether the command asks the person for confirmation. It does so if standard input is a
// terminal and --yes is not set.
func isInteractive(assumeYes bool) bool { return !assumeYes && term.IsTerminal(int(os.Stdin.Fd())) }

// confirm asks at the terminal whether to continue. It returns nil if the person answers yes, or if assumeYes is true.
// It returns an error if there is no terminal. Otherwise an agent with a shell could redirect standard input and answer
// for the person.
func (t *tool) confirm(ctx context.Context, assumeYes bool, question string) error {
	if assumeYes {
		return nil
	}
	if !isInteractive(false) {
		return fmt.Errorf("%w: %w", errNotConfirmed, errNoTerminal)
	}
	answer, err := t.prompt(ctx, safetext.Line(question)+" Type yes: ")
	if err != nil {
		fmt.Fprintln(t.errOut) // end the line of the question
		return errNotConfirmed
	}
	if !isYes(answer) {
		return errNotConfirmed
	}
	return nil
}

func isYes(answer string) bool {
	return strings.EqualFold(answer, "yes") || strings.EqualFold(answer, "y")
}

// prompt prints a question and reads a line from standard input. If ctx is done first, prompt returns the context's
// error.
func (t *tool) prompt(ctx context.Context, text string) (string, error) {
	fmt.Fprint(t.errOut, text)
	type read struct {
		line string
		err  error
	}
	answer := make(chan read, 1)
	go func() { // a read can't be interrupted, so this goroutine outlives prompt if there is no answer
		line, err := bufio.NewReader(os.Stdin).ReadString('\n')
		if errors.Is(err, io.EOF) && line != "" {
			err = nil
		}
		answer <- read{line, err}
	}()
	select {
	case a := <-answer:
		return strings.TrimSpace(a.line), a.err
	case <-ctx.Done():
		return "", ctx.Err()
	}
}
