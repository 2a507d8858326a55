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
	filter := new(approvalv1.ApprovalFilter)
	c := &cobra.Command{
		Use: "watch", Short: "Print the approvals that have not ended, and every change as it happens", Args: args(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			f, err := t.load()
			if err != nil {
				return err
			}
			conn, err := t.dial(f, authv1.Role_ROLE_APPROVAL)
			if err != nil {
				return err
			}
			defer conn.Close() //nolint:errcheck // only the moves matter
			return (&watch{tool: t, conn: conn, filter: filter}).run(c.Context())
		},
	}
	t.filterFlags(c, filter, "begin with the approvals that you may decide on; later changes of other approvals are printed too")
	return c
}

type watch struct {
	*tool
	conn   *grpc.ClientConn
	filter *approvalv1.ApprovalFilter
	cursor string
	// away is true if the command has printed that the mesh is unavailable, but not yet that it is available again.
	away bool
	// headed is true if the head of the table was printed.
	headed bool
}

// run prints changes until ctx ends. If the connection fails, run connects again.
func (w *watch) run(ctx context.Context) error {
	const pause = time.Second
	client := approvalv1.NewApprovalServiceClient(w.conn)
	for {
		stream, err := client.WatchApprovals(ctx, &approvalv1.WatchApprovalsRequest{Filter: w.filter, Cursor: w.cursor})
		if err == nil {
			err = w.follow(stream)
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
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
		w.conn.ResetConnectBackoff() // otherwise gRPC would wait longer after each failure
	}
}

func (w *watch) follow(stream grpc.ServerStreamingClient[approvalv1.WatchApprovalsResponse]) error {
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
	}
}

// print prints the state of an approval. The first call also prints the head of the table. If a is nil, as in a
// heartbeat, print prints no state.
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
