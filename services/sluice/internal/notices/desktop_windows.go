package notices

import (
	"cmp"
	"context"
	"os/exec"
	"syscall"

	"github.com/sluice-mesh/sluice/services/internal/app"
)

func (d *Desktop) show(ctx context.Context, body string) error {
	windows, _ := app.Env("SystemRoot")
	return powerShell(cmp.Or(windows, `C:\Windows`), body).run(ctx)
}

// hideWindow keeps the console window of a command hidden.
func hideWindow(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{HideWindow: true} }
