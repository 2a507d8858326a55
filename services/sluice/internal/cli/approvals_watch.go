package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	"github.com/sluice-mesh/sluice/services/internal/safetext"
)

func (t *tool) approvalsWatch() *cobra.Command {
	var withCommand bool
	filter := new(approvalv1.ApprovalFilter)
	c := &cobra.Command{
		Use: "watch [--exec COMMAND [ARG...]]", Short: "Print the approvals that have not ended, and every change as it happens",
		Long: `Print the approvals that have not ended, and every change as it happens.

With --exec, which must be the last flag, also run a command once for each pending approval, at
most 4 at a time and for at most 30 s each. It gets the approval with the tool's category and
risk as one line of JSON on standard input, and the id and the number of pending approvals in
SLUICE_APPROVAL_ID and SLUICE_APPROVALS_PENDING. Agents and servers can choose names and reasons
in the JSON.`,
		Args: args(func(c *cobra.Command, given []string) error {
			if withCommand {
				return cobra.MinimumNArgs(1)(c, given)
			}
			return cobra.NoArgs(c, given)
		}),
		RunE: func(c *cobra.Command, given []string) error {
			w := &watch{tool: t, filter: filter}
			if err := w.connect(); err != nil {
				return err
			}
			defer w.close()
			if withCommand {
				command, stop, err := t.startApprovalCommand(c.Context(), given)
				if err != nil {
					return err
				}
				defer stop()
				w.command = command
			}
			return w.run(c.Context())
		},
	}
	c.Flags().SetInterspersed(false) // flags after the command belong to the command
	c.Flags().BoolVar(&withCommand, "exec", false, "run the command that follows for each approval that becomes pending")
	t.filterFlags(c, filter, "only approvals that you may decide on")
	return c
}

type watch struct {
	*tool
	conn   *grpc.ClientConn
	filter *approvalv1.ApprovalFilter
	cursor string
	// command runs a program for each approval. It is nil without --exec.
	command *approvalCommand
	// away is true while the mesh is unavailable, after w has printed this.
	away bool
	// headed is true if the header row of the table was printed.
	headed bool
}

const reconnectPause = time.Second

// connect connects to the mesh. The mesh's address may have changed since the last connection.
func (w *watch) connect() error {
	f, err := w.load()
	if err != nil {
		return err
	}
	conn, err := w.dial(f, authv1.Role_ROLE_APPROVAL)
	if err != nil {
		return err
	}
	w.close()
	w.conn = conn
	return nil
}

func (w *watch) close() {
	if w.conn != nil {
		_ = w.conn.Close() // an error does not matter, because the connection is no longer used
	}
}

// run prints changes until ctx is done. If the connection fails, run connects again.
func (w *watch) run(ctx context.Context) error {
	for {
		client := approvalv1.NewApprovalServiceClient(w.conn)
		stream, err := client.WatchApprovals(ctx, &approvalv1.WatchApprovalsRequest{Filter: w.filter, Cursor: w.cursor})
		if err == nil {
			err = w.follow(ctx, client, stream)
		}
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the person has ended the command
		}
		if w.cursor == "" || !isUnavailable(err) {
			return w.explainError(err)
		}
		if !w.away {
			fmt.Fprintln(w.errOut, "sluice: the mesh does not answer; trying again until it does")
			w.away = true
		}
		if !w.reconnect(ctx) {
			return nil
		}
	}
}

// reconnect waits and then connects again, until it succeeds. It returns false if ctx is done first. It does not reuse
// the old connection. If the mesh has exited, another program may use its port, and this program must not get the
// token.
func (w *watch) reconnect(ctx context.Context) bool {
	for {
		select {
		case <-ctx.Done():
			return false
		case <-time.After(reconnectPause):
		}
		if w.connect() == nil {
			return true
		}
	}
}

func (w *watch) follow(ctx context.Context, client approvalv1.ApprovalServiceClient, stream grpc.ServerStreamingClient[approvalv1.WatchApprovalsResponse]) error {
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if w.away {
			fmt.Fprintln(w.errOut, "sluice: the mesh answers again")
			w.away = false
		}
		if m.GetCursor() != "" {
			w.cursor = m.GetCursor()
		}
		if err := w.print(m.GetApproval()); err != nil {
			return err
		}
		if w.command != nil {
			w.command.moved(ctx, client, m.GetApproval())
		}
	}
}

// print prints the state of an approval. The first call also prints the header row of the table. A heartbeat has no
// approval: a is nil, and print prints no state.
func (w *watch) print(a *approvalv1.Approval) error {
	if w.json() {
		if a == nil {
			return nil
		}
		return w.printLine(safetext.ApprovalOf(a))
	}
	if !w.headed {
		w.headed = true
		if err := w.row(approvalColumns()); err != nil {
			return err
		}
	}
	if a == nil {
		return nil
	}
	return w.row(approvalCells(a))
}

// row prints a row with fixed column widths, because later rows are not known yet.
func (w *watch) row(cells []string) error {
	widths := [...]int{8, 15, 12, 20, 7, 8, 5, 0}
	for i := range cells {
		cells[i] = fmt.Sprintf("%-*s", widths[i], safetext.Line(cells[i]))
	}
	_, err := fmt.Fprintln(w.out, strings.Join(cells, "  "))
	return err
}
