package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluice-mesh/sluice/services/internal/app"
	"github.com/sluice-mesh/sluice/services/sluice/internal/running"
)

const startMeshName = "start-mesh"

// startMesh returns the command that starts the person's own mesh and exits when the mesh is ready.
func (t *tool) startMesh() *cobra.Command {
	return &cobra.Command{
		Use:    startMeshName,
		Short:  "Start your own mesh, and end when it is ready",
		Hidden: true,
		Args:   args(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			own, err := t.namedMesh(t.config, t.data)
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(c.Context(), meshStartTimeout)
			defer cancel()
			_, err = own.start(ctx)
			return err
		},
	}
}

// startOutside starts the mesh through another process, which exits when the mesh is ready. Therefore the mesh is not a
// descendant of this process. Some clients kill all descendants of a server when they stop the server.
func (m *ownMesh) startOutside(ctx context.Context) (mesh running.Mesh, err error) {
	cmd := exec.CommandContext(ctx, m.program, startMeshName, "--config", m.config, "--data", m.data) //nolint:gosec // this program
	cmd.Dir, cmd.Env = m.data, app.Environ()
	var reason bytes.Buffer
	cmd.Stderr = &reason
	err = cmd.Run()
	if mesh, found, findErr := running.Find(m.data); findErr != nil || found {
		return mesh, findErr
	}
	switch text := strings.TrimPrefix(strings.TrimSpace(reason.String()), "sluice: "); {
	case ctx.Err() != nil:
		return mesh, m.errNotReady()
	case text != "":
		return mesh, errors.New(strings.ReplaceAll(text, "\n  ", "\n")) // remove the indentation that Main adds
	case err != nil:
		return mesh, fmt.Errorf("start your mesh: %w", err)
	default:
		return mesh, fmt.Errorf("your mesh has ended as soon as it was ready: see %s", m.logPath())
	}
}

func (m *ownMesh) errNotReady() error {
	return fmt.Errorf("your mesh is not ready after %v: try again, or see %s", meshStartTimeout, m.logPath())
}
