package cli

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/sluice-mesh/sluice/services/internal/app"
	"github.com/sluice-mesh/sluice/services/sluice/internal/relay"
)

func (t *tool) stdio() *cobra.Command {
	var server string
	c := &cobra.Command{
		Use:   "stdio",
		Short: "Speak MCP on standard input and output, for clients that only start programs",
		Long: `Carry what an MCP client writes on standard input to the mesh, as the agent, and
what comes back to standard output: messages, a line each. What goes wrong is said
on standard error.

In the configuration of a client that starts its servers, for all servers behind the
mesh, whose tools are called <server>__<tool> then:

  {"mcpServers": {"sluice": {"command": "sluice", "args": ["stdio"]}}}

And for one of them, as it stands there:

  {"mcpServers": {"demo": {"command": "sluice", "args": ["stdio", "--server", "demo"]}}}

The mesh has to be up; SLUICE_URL says where, else the configuration does. A session
that the mesh has forgotten is opened anew.`,
		Args: args(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error { return t.runStdio(c.Context(), server) },
	}
	c.Flags().StringVar(&server, "server", "", "one server behind the mesh; all of them where this is left out")
	_ = c.RegisterFlagCompletionFunc("server", t.completeServer) // the flag is there
	return c
}

func (t *tool) runStdio(ctx context.Context, server string) error {
	f, err := t.load()
	if err != nil {
		return err
	}
	token, err := t.secret(f, agentToken)
	if err != nil {
		return err
	}
	client, err := t.edgeClient(f)
	if err != nil {
		return err
	}
	cfg := relay.Config{URL: t.edgeURL(f, server), Token: token, Client: client, Log: app.NewLog(t.errOut, "stdio", false, slog.LevelInfo)}
	to := io.Writer(os.Stdout)
	if term.IsTerminal(int(os.Stdout.Fd())) { // where somebody reads, and no program
		to = t.out
	}
	err = relay.Run(ctx, cfg, os.Stdin, to)
	if errors.Is(err, context.Canceled) { // by a signal: that is how clients end programs
		return nil
	}
	return err
}
