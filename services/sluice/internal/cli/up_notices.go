package cli

import (
	"context"
	"fmt"
	"os"
	"time"

	"golang.org/x/term"

	"github.com/sluice-mesh/sluice/services/approval"
	"github.com/sluice-mesh/sluice/services/internal/config"
	"github.com/sluice-mesh/sluice/services/sluice"
)

// noticeInterval is the minimum time between two notices. A notice covers all approvals since the previous one.
const noticeInterval = 5 * time.Second

// announceApprovals prints a line on standard error when calls wait for approval, and rings the bell of the terminal. If
// standard error is not a terminal, it prints nothing. It returns when ctx ends.
func (t *tool) announceApprovals(ctx context.Context, f *config.File, lookup addresses, mesh *sluice.Mesh) {
	if !term.IsTerminal(int(os.Stderr.Fd())) {
		return
	}
	mesh.WatchPending(ctx, func(p approval.Pending) {
		fmt.Fprint(os.Stderr, "\a") // t.errOut would escape it
		_ = oneLine(t.errOut, "sluice: %s", pendingNotice(t.commandFor(f, lookup), p))
		select { // the next notice covers the approvals that are opened meanwhile
		case <-ctx.Done():
		case <-time.After(noticeInterval):
		}
	})
}

// pendingNotice returns a sentence about pending approvals and the command that prints them. program is the beginning of
// the command. The sentence contains nothing from an agent or a server.
func pendingNotice(program string, p approval.Pending) string {
	if p.Total == 1 {
		return fmt.Sprintf("1 call waits for approval: `%s approvals show %s`", program, p.Newest)
	}
	return fmt.Sprintf("%d calls wait for approval, %d of them new: `%s approvals list`; the newest: `%s approvals show %s`",
		p.Total, p.New, program, program, p.Newest)
}
