package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/sluice-mesh/sluice/services/internal/app"
	"github.com/sluice-mesh/sluice/services/internal/config"
	"github.com/sluice-mesh/sluice/services/sluice/internal/relay"
)

func (t *tool) stdio() *cobra.Command {
	var server string
	c := &cobra.Command{
		Use:   "stdio",
		Short: "Speak MCP on standard input and output, for clients that only start programs",
		Long: `Carry what an MCP client writes on standard input to a server behind the mesh, as
the agent, and what comes back to standard output: messages, a line each. What goes
wrong is said on standard error.

In the configuration of a client that starts its servers:

  {"mcpServers": {"demo": {"command": "sluice", "args": ["stdio", "--server", "demo"]}}}

The mesh has to be up; SLUICE_URL says where, else the configuration does. A session
that the mesh has forgotten is opened anew.`,
		Args: args(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error { return t.runStdio(c.Context(), server) },
	}
	c.Flags().StringVar(&server, "server", "", "the server behind the mesh; may be left out where one alone is configured")
	_ = c.RegisterFlagCompletionFunc("server", t.completeServer) // the flag is there
	return c
}

func (t *tool) runStdio(ctx context.Context, server string) error {
	f, err := t.load()
	if err != nil {
		return err
	}
	if server, err = t.onlyServer(ctx, f, server); err != nil {
		return err
	}
	token, err := t.secret(f, agentToken)
	if err != nil {
		return err
	}
	client, err := edgeClient(f)
	if err != nil {
		return err
	}
	cfg := relay.Config{URL: t.edgeURL(f, server), Token: token, Client: client, Log: app.NewLog(t.errOut, "stdio", false)}
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

// onlyServer is the server that was named or, where none was, the only one there is: by the
// configuration, else by the mesh.
func (t *tool) onlyServer(ctx context.Context, f *config.File, named string) (string, error) {
	if named != "" {
		return named, nil
	}
	names := slices.Sorted(maps.Keys(f.Servers))
	if len(names) == 0 {
		names, _ = t.serverNames(ctx) // who can't ask is told all the same what to say
	}
	if len(names) == 1 {
		return names[0], nil
	}
	return "", usageError{fmt.Errorf("say by --server which server: %s", cmp.Or(strings.Join(names, ", "), t.command("status")+" lists them"))}
}
