//go:build darwin || windows

package notices

import (
	"context"
	"fmt"
	"os/exec"
)

func (p program) run(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, p.argv[0], p.argv[1:]...) //nolint:gosec // fixed programs of the system
	cmd.Env = append(cmd.Environ(), p.env...)
	cmd.WaitDelay = outputDelay
	hideWindow(cmd)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %.200q", p.argv[0], err, out)
	}
	return nil
}
