package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/sluice-mesh/sluice/services/internal/app"
	"github.com/sluice-mesh/sluice/services/sluice/internal/localconfig"
	"github.com/sluice-mesh/sluice/services/sluice/internal/personal"
	"github.com/sluice-mesh/sluice/services/sluice/internal/relay"
	"github.com/sluice-mesh/sluice/services/sluice/internal/tokenhttp"
)

func (t *tool) stdio() *cobra.Command {
	var server, as, url string
	c := &cobra.Command{
		Use:   "stdio",
		Short: "Connect a client that supports only the stdio transport to the mesh",
		Args:  args(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			// --config can select the person's own mesh. SLUICE_CONFIG can't, because a project's settings could set this
			// variable.
			return t.runStdio(c.Context(), relayFlags{server, as, url, c.Flags().Changed("config")})
		},
	}
	c.Flags().StringVar(&server, "server", "", "the server behind the mesh (default all)")
	c.Flags().StringVar(&as, "as", "", "use your own mesh or that of --config as this client, such as claude-code; starts the mesh if necessary")
	c.Flags().StringVar(&url, "url", "", "with --as: use the mesh at this `URL`, for which `init --http` has stored a token")
	_ = c.RegisterFlagCompletionFunc("server", t.completeServer)
	c.SetHelpFunc(func(c *cobra.Command, given []string) {
		_ = t.checkFlags(c, nil) // help is printed even if the flags are not valid
		c.Long = t.stdioHelp()
		c.Parent().HelpFunc()(c, given)
	})
	return c
}

// stdioHelp returns the help text of the command, which contains entries for clients' configurations. These entries
// work in any directory, because they contain the path of this program and the path of the configuration or the data
// directory.
func (t *tool) stdioHelp() string {
	args, found := t.meshFlags()
	note := "These entries are for the mesh of this folder, and work from any folder."
	if !found {
		note = "No mesh has run in this folder. To get entries that work from any folder, run this help\nin the folder of `up`, or with its --config or --data."
	}
	return stdioText(t.stdioEntry(args), t.stdioEntry(args, "--server", "demo"), note)
}

// stdioText returns the help text with two entries for a client's configuration, one for all servers and one for a
// single server.
func stdioText(all, one, note string) string {
	return `Send the messages of an MCP client on standard input to the mesh, as the agent, and print the
answers on standard output, one message on each line.

This entry in a client's configuration is for all servers. Their tools have names such as
SERVER__TOOL:

  {"mcpServers": {"sluice": ` + all + `}}

This entry is for one server. The names of its tools are unchanged:

  {"mcpServers": {"demo": ` + one + `}}

` + note + `

The mesh must be running, at SLUICE_URL or at the address in the configuration. A sluice.yaml in
the folder is read only if --config names it. If the configuration has tokens for agents, set
SLUICE_TOKEN in the entry to one of them.`
}

// meshFlags returns the flags with which a command in any other directory finds the mesh of the working directory. The
// second result is false if no mesh has run in the working directory.
func (t *tool) meshFlags() (flags []string, found bool) {
	config := t.config
	if config == "" && localconfig.Usable(".") { // `up` in this directory uses the file
		config = localconfig.Name
	}
	if config != "" {
		flags, found = append(flags, "--config", absolutePath(config)), true
	}
	fromEnv, _ := app.Env("SLUICE_DATA")
	data := cmp.Or(t.data, fromEnv)
	if data == "" && config != "" {
		return flags, found // the configuration names the data directory
	}
	data = absolutePath(cmp.Or(data, ".sluice"))
	_, err := os.Stat(filepath.Join(data, "tokens", agentToken))
	return append(flags, "--data", data), found || err == nil
}

// stdioEntry returns a JSON entry for a client's configuration. The entry starts `stdio` with the given flags and
// arguments.
func (t *tool) stdioEntry(flags []string, more ...string) string {
	words := []string{t.programPath()}
	if name, ok := app.Env("SLUICE_COMMAND"); ok && name != "" { // in a container, the paths of the host don't exist
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

// programPath returns the path of this program, or its name if the path is not known. If PATH contains a link to the
// program, programPath returns the path of the link. An upgrade, for example with Homebrew, can change the path of the
// program, but not the path of the link.
func (t *tool) programPath() string {
	path, err := os.Executable()
	if err != nil {
		return "sluice"
	}
	link, err := exec.LookPath("sluice")
	if err != nil || !filepath.IsAbs(link) {
		return path
	}
	one, err := os.Stat(link)
	if err != nil {
		return path
	}
	if other, err := os.Stat(path); err != nil || !os.SameFile(one, other) {
		return path
	}
	return link
}

func absolutePath(path string) string {
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}
	return path
}

// relayFlags contains the flags of stdio. config is true if --config was given.
type relayFlags struct {
	server, as, url string
	config          bool
}

func (t *tool) runStdio(ctx context.Context, flags relayFlags) error {
	cfg, err := t.relayConfig(flags)
	if err != nil {
		return err
	}
	cfg.Log = app.NewLog(t.errOut, "stdio", false, slog.LevelInfo)
	to := io.Writer(os.Stdout)
	if term.IsTerminal(int(os.Stdout.Fd())) { // t.out escapes control characters for the terminal
		to = t.out
	}
	err = relay.Run(ctx, cfg, os.Stdin, to)
	if errors.Is(err, context.Canceled) { // clients end the program with a signal
		return nil
	}
	return err
}

// relayConfig returns the endpoint and the token for a client. If flags.as is empty, it uses the mesh in the
// configuration. Otherwise it uses the mesh at flags.url, or the person's own mesh if flags.url is empty.
func (t *tool) relayConfig(flags relayFlags) (cfg relay.Config, err error) {
	server, as, url := flags.server, flags.as, flags.url
	switch {
	case url != "" && as == "":
		return cfg, usageError{errors.New("--url needs --as: without --as, set SLUICE_URL and SLUICE_TOKEN")}
	case url != "":
		return t.elsewhereRelay(url, server, as)
	case as != "" && flags.config:
		own, err := t.meshOf(t.config)
		return t.clientRelay(server, as, own, err)
	case as != "":
		own, err := t.ownMesh()
		return t.clientRelay(server, as, own, err)
	}
	f, err := t.load()
	if err != nil {
		return cfg, err
	}
	if cfg.Token, err = t.readToken(f, agentToken); err != nil {
		return cfg, err
	}
	if cfg.Client, err = t.mcpClient(f); err != nil {
		return cfg, err
	}
	endpoint := t.endpointURL(f, server)
	cfg.Endpoint = func(context.Context, bool) (string, error) { return endpoint, nil }
	return cfg, nil
}

// clientRelay returns the endpoint and the token for a client of the person's own mesh. If the mesh is not running, the
// client's next message starts it. If the mesh can't be used, noMesh is the reason. The relay then responds to each
// message with this reason, because most clients don't show a server's standard error.
func (t *tool) clientRelay(server, as string, own *ownMesh, noMesh error) (cfg relay.Config, err error) {
	if err := personal.CheckClient(as); err != nil {
		return cfg, usageError{fmt.Errorf("--as: %w", err)}
	}
	cfg.Client = tokenhttp.New(nil, "")
	if err = noMesh; err == nil {
		cfg.Token, err = t.clientToken(own, as)
	}
	if err != nil {
		return t.brokenRelay(err), nil
	}
	cfg.Endpoint = func(ctx context.Context, start bool) (string, error) {
		mesh, err := own.find(ctx, start)
		if err != nil {
			return "", err
		}
		return "http://" + mesh.MCP + mcpPath(server), nil
	}
	return cfg, nil
}

// brokenRelay returns the configuration of a relay that can't deliver messages and responds to each message with the
// given reason.
func (t *tool) brokenRelay(reason error) relay.Config {
	fmt.Fprintf(t.errOut, "sluice: %v\n", reason)
	return relay.Config{
		Token: "none", Client: tokenhttp.New(nil, ""),
		Endpoint: func(context.Context, bool) (string, error) { return "", reason },
	}
}

// clientToken reads the token that a client uses for the person's own mesh.
func (t *tool) clientToken(own *ownMesh, client string) (string, error) {
	raw, err := os.ReadFile(own.paths.Token(client))
	if errors.Is(err, fs.ErrNotExist) {
		return "", t.errNoClientToken(own, client)
	}
	if err != nil {
		return "", fmt.Errorf("read the token of %s: %w", client, err)
	}
	return strings.TrimSpace(string(raw)), nil
}
