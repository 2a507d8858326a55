package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluice-mesh/sluice/services/internal/app"
	"github.com/sluice-mesh/sluice/services/internal/config"
	"github.com/sluice-mesh/sluice/services/sluice/internal/clientconfig"
	"github.com/sluice-mesh/sluice/services/sluice/internal/personal"
	"github.com/sluice-mesh/sluice/services/sluice/internal/tokenhttp"
)

// asFlag adds the flag --as to a command that calls the person's own mesh as a client, such as claude-code.
func (t *tool) asFlag(c *cobra.Command) {
	c.Flags().StringVar(&t.as, "as", "", "call your own mesh as this client, such as claude-code; starts the mesh if necessary")
	_ = c.RegisterFlagCompletionFunc("as", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return clientIDs(), cobra.ShellCompDirectiveNoFileComp
	})
}

// errTokenConfigured returns the error for a missing token file. No token was generated, because the configuration
// already has tokens with this role. In the person's own mesh, each client has such a token.
func (t *tool) errTokenConfigured(f *config.File, role string) error {
	if role == agentToken && f.Name() != "" && f.Name() == t.personalConfig() {
		return fmt.Errorf("this is your own mesh, whose calls come from a client: name one with --as, such as --as %s", strings.Join(agentNames(f), " or --as "))
	}
	return fmt.Errorf("no %s token: the configuration has tokens of this role under auth.tokens, so none was generated: set SLUICE_TOKEN to one of them, or name a client of your own mesh with --as", role)
}

// agentNames returns the names of the agents' tokens in the configuration. In the mesh that `init` creates, these names
// are the ids of clients.
func agentNames(f *config.File) []string {
	var out []string
	for _, token := range f.Auth.Tokens {
		if token.Role == agentToken {
			out = append(out, token.Name)
		}
	}
	return out
}

// errNoClientToken returns the error for a client that has no token for the person's own mesh.
func (t *tool) errNoClientToken(own *ownMesh, client string) error {
	if _, known := clientconfig.Find(client); known {
		return fmt.Errorf("%s has no token for your mesh: run %s", client, t.command("init "+client))
	}
	f, err := config.Load(own.config, app.Env)
	if err != nil {
		return err
	}
	return fmt.Errorf("your mesh has no client %q: its clients are %s", client, strings.Join(agentNames(f), ", "))
}

// connectAs opens a session as the given client with a server in the person's own mesh. It starts the mesh if
// necessary.
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
