package cli

import (
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/sluice-mesh/sluice/services/internal/app"
	"github.com/sluice-mesh/sluice/services/sluice/internal/localconfig"
	"github.com/sluice-mesh/sluice/services/sluice/internal/relay"
)

func (t *tool) stdio() *cobra.Command {
	var server string
	c := &cobra.Command{
		Use:   "stdio",
		Short: "Speak MCP on standard input and output, for clients that only start programs",
		Args:  args(cobra.NoArgs),
		RunE:  func(c *cobra.Command, _ []string) error { return t.runStdio(c.Context(), server) },
	}
	c.Flags().StringVar(&server, "server", "", "one server behind the mesh; all of them where this is left out")
	_ = c.RegisterFlagCompletionFunc("server", t.completeServer) // the flag is there
	c.SetHelpFunc(func(c *cobra.Command, given []string) {
		_ = t.checkFlags(c, nil) // help is printed whatever the flags are
		c.Long = t.stdioHelp()
		c.Parent().HelpFunc()(c, given)
	})
	return c
}

// stdioHelp is the help of the command. What it says to paste works from any folder: it has the path of this program,
// and that of the configuration or the data folder.
func (t *tool) stdioHelp() string {
	args, found := t.whereMesh()
	note := "It is for the mesh of this folder; the paths in it make it work from any other."
	if !found {
		note = "No mesh has run in this folder: run this help where `up` runs, or with its --config or\n--data, for the paths that make it work from any folder."
	}
	return `Carry what an MCP client writes on standard input to the mesh, as the agent, and
what comes back to standard output: messages, a line each. What goes wrong is said
on standard error.

In the configuration of a client that starts its servers, for all servers behind the
mesh, whose tools are called <server>__<tool> then:

  {"mcpServers": {"sluice": ` + t.stdioEntry(args) + `}}

And for one of them, as it stands there:

  {"mcpServers": {"demo": ` + t.stdioEntry(args, "--server", "demo") + `}}

` + note + `

The mesh has to be up; SLUICE_URL says where, else the configuration does. A
sluice.yaml of the folder is read only if --config names it. If the configuration
has agents' tokens of its own, give one to the client as the variable SLUICE_TOKEN
of this entry. A session that the mesh has forgotten is opened again.`
}

// whereMesh are the flags by which a command finds the mesh of this folder from any other, and whether there is one.
func (t *tool) whereMesh() (flags []string, found bool) {
	config := t.config
	if config == "" && localconfig.Usable(".") { // `up` in this folder uses it
		config = localconfig.Name
	}
	if config != "" {
		flags, found = append(flags, "--config", absolute(config)), true
	}
	fromEnv, _ := app.Env("SLUICE_DATA")
	data := cmp.Or(t.data, fromEnv)
	if data == "" && config != "" {
		return flags, found // the configuration says where
	}
	data = absolute(cmp.Or(data, ".sluice"))
	_, err := os.Stat(filepath.Join(data, "tokens", agentToken))
	return append(flags, "--data", data), found || err == nil
}

// stdioEntry is the entry of a client's configuration that starts `stdio` with more arguments.
func (t *tool) stdioEntry(flags []string, more ...string) string {
	words := []string{t.program()}
	if name, ok := app.Env("SLUICE_COMMAND"); ok && name != "" { // a container, where the host's paths mean nothing
		words, flags = strings.Fields(name), nil
	}
	entry := struct {
		Command string   `json:"command"`
		Args    []string `json:"args"`
	}{words[0], slices.Concat(words[1:], []string{"stdio"}, flags, more)}
	raw, err := json.Marshal(entry)
	if err != nil {
		return "{}"
	}
	return string(raw)
}

// program is the path of this program; its name where that is not known.
func (t *tool) program() string {
	path, err := os.Executable()
	if err != nil {
		return "sluice"
	}
	return path
}

func absolute(path string) string {
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}
	return path
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
