package cli

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"time"

	"golang.org/x/term"

	"github.com/sluice-mesh/sluice/services/approval"
	"github.com/sluice-mesh/sluice/services/internal/config"
	"github.com/sluice-mesh/sluice/services/sluice"
	"github.com/sluice-mesh/sluice/services/sluice/internal/notices"
	"github.com/sluice-mesh/sluice/services/sluice/internal/personal"
)

// noticeInterval is the minimum time between two notices. A notice covers all approvals since the previous notice.
const noticeInterval = 5 * time.Second

// Until ctx is done, announceApprovals announces calls that wait for approval. It announces them at the terminal if
// standard error is a terminal, and on the desktop if this is configured.
func (t *tool) announceApprovals(ctx context.Context, f *config.File, lookup addresses, mesh *sluice.Mesh, log *slog.Logger) {
	bell, desktop := term.IsTerminal(int(os.Stderr.Fd())), showsOnDesktop(f)
	if !bell && !desktop {
		return
	}
	lookup.mcp = f.Listen // the commands in notices do not use the MCP address
	if isFreePort(lookup.grpc) {
		lookup.grpc = f.GRPC // commands find the address of the running mesh themselves
	}
	var screen notices.Desktop
	level := slog.LevelDebug // the desktop is optional unless the user has configured it
	if f.Approvals.Notify.Desktop != nil {
		level = slog.LevelWarn
	}
	mesh.WatchPending(ctx, func(p approval.Pending) {
		if bell {
			fmt.Fprint(os.Stderr, "\a") // t.errOut would escape it
			_ = oneLine(t.errOut, "sluice: %s", pendingNotice(t.commandFor(f, lookup), p))
		}
		if desktop {
			if err := screen.Show(ctx, pendingNotice("sluice", p)); err != nil {
				log.Log(ctx, level, "people were not notified on the desktop; the approval is pending", "error", err)
			}
		}
		select { // the next notice covers approvals that are opened meanwhile
		case <-ctx.Done():
		case <-time.After(noticeInterval):
		}
	})
}

// showsOnDesktop reports whether notices appear on the desktop. The default is true only for the person's own mesh.
func showsOnDesktop(f *config.File) bool {
	if on := f.Approvals.Notify.Desktop; on != nil {
		return *on
	}
	paths, err := personal.Find()
	return err == nil && f.Name() != "" && absolutePath(f.Name()) == paths.Config
}

// pendingNotice returns a sentence about pending approvals and the command that prints them. The command begins with
// program. The sentence contains no text from an agent or a server.
func pendingNotice(program string, p approval.Pending) string {
	if p.Total == 1 {
		return fmt.Sprintf("1 call waits for approval: `%s approvals show %s`", program, p.Newest)
	}
	return fmt.Sprintf("%d calls wait for approval, %d of them new: `%s approvals list`; the newest: `%s approvals show %s`",
		p.Total, p.New, program, program, p.Newest)
}
