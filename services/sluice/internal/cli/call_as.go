package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/sluice-mesh/sluice/services/sluice/internal/personal"
	"github.com/sluice-mesh/sluice/services/sluice/internal/tokenhttp"
)

// asFlag adds the flag --as to a command that calls the mesh as an agent.
func (t *tool) asFlag(c *cobra.Command) {
	c.Flags().StringVar(&t.as, "as", "", "call your own mesh as this client, such as claude-code, and start the mesh if it does not run")
	_ = c.RegisterFlagCompletionFunc("as", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return clientIDs(), cobra.ShellCompDirectiveNoFileComp
	})
}

// connectAs opens a session with a server of the person's own mesh as one of its clients. It starts the mesh if it does
// not run.
func (t *tool) connectAs(ctx context.Context, server, client string) (*session, error) {
	if err := personal.CheckClient(client); err != nil {
		return nil, usageError{fmt.Errorf("--as: %w", err)}
	}
	own, err := t.ownMesh()
	if err != nil {
		return nil, err
	}
	token, err := t.clientToken(own, client)
	if err != nil {
		return nil, err
	}
	mesh, err := own.find(ctx, true)
	if err != nil {
		return nil, err
	}
	return openSession(ctx, tokenhttp.New(nil, ""), "http://"+mesh.MCP+mcpPath(server), token)
}
