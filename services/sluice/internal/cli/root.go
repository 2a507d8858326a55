// Package cli is the command line for people. It runs the mesh in one process, and sends requests to a running mesh.
package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluice-mesh/sluice/services/internal/app"
	"github.com/sluice-mesh/sluice/services/internal/config"
	"github.com/sluice-mesh/sluice/services/internal/safetext"
	"github.com/sluice-mesh/sluice/services/internal/sandbox"
)

// errSilent makes a command exit with code 1 if the command has already printed the error.
var errSilent = errors.New("already printed")

// tool is the state that all commands share, such as common flags and the output.
type tool struct {
	config string
	addr   string
	data   string
	output string
	out    io.Writer
	errOut io.Writer
	// self is the name of this program for messages that contain commands. launcher starts stdio servers in a sandbox.
	self     string
	launcher sandbox.Launcher
	addrFrom string
	// cleartextTo is a host, in addition to this machine, to which the agent's token may be sent without TLS. It may be
	// empty.
	cleartextTo string
	// as is the client whose token for the person's own mesh is used instead of the agent's token. It may be empty.
	as string
	// commandName is the name of the command. lastRequest describes its last request. Errors contain both.
	commandName string
	lastRequest requestTarget
}

// Main runs the command line and returns the exit code: 0 for success, 1 for a failure, and 2 for an invalid command
// line. The parameter program is the name with which the process was called. The launcher starts stdio servers.
func Main(program string, args []string, launcher sandbox.Launcher) int {
	ctx, stop := app.Signals()
	defer stop()
	t := newTool(program, os.Stdout, os.Stderr)
	t.launcher = launcher
	return t.run(ctx, args)
}

// newTool returns the tool for one run of the program. Its output can't control the terminal, even if it contains an
// untrusted string.
func newTool(program string, out, errOut io.Writer) *tool {
	return &tool{self: selfName(program, app.Env, exec.LookPath), out: safetext.NewWriter(out), errOut: safetext.NewWriter(errOut)}
}

func (t *tool) run(ctx context.Context, args []string) int {
	root := t.root()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	with, hasCode := errors.AsType[exitError](err)
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errSilent) && hasCode:
		return with.code
	case errors.Is(err, errSilent):
		return 1
	}
	// All lines except the first are indented, so that a string in an error can't be mistaken for output of this command.
	fmt.Fprintf(t.errOut, "sluice: %s\n", strings.ReplaceAll(err.Error(), "\n", "\n  "))
	if _, ok := errors.AsType[usageError](err); ok {
		return 2
	}
	if hasCode {
		return with.code
	}
	return 1
}

// exitError is an error that determines the exit code of the command.
type exitError struct {
	error
	code int
}

// Unwrap returns the underlying error.
func (e exitError) Unwrap() error { return e.error }

// selfName returns the name of this program for messages. If SLUICE_COMMAND is set, as in containers, selfName returns
// the value of this variable. If the process was called by a relative path, such as ./sluice, it returns this path. If
// the process was called by an absolute path and PATH contains no program named sluice, it returns the absolute path.
// In all other cases, it returns "sluice".
func selfName(program string, env config.Env, look func(string) (string, error)) string {
	if name, ok := env("SLUICE_COMMAND"); ok && name != "" {
		return name
	}
	if !filepath.IsAbs(program) && strings.ContainsRune(program, filepath.Separator) {
		return program
	}
	if filepath.IsAbs(program) {
		if _, err := look("sluice"); err != nil {
			return shellWords(program)
		}
	}
	return "sluice"
}

// command returns a command line of this program, in backquotes, for messages.
func (t *tool) command(words string) string { return "`" + t.self + " " + words + "`" }

// usageError is an error in the use of the command line.
type usageError struct{ error }

func (t *tool) root() *cobra.Command {
	root := &cobra.Command{
		Use:         "sluice",
		Annotations: map[string]string{cobra.CommandDisplayNameAnnotation: t.self},
		Short:       "A policy mesh for MCP, which decides on every tool call before the call reaches its server",
		Long: `Sluice is a proxy between AI agents and MCP servers. Before a tool call reaches its server, Sluice
decides whether the call runs, is refused with a reason, is limited in rate, or waits for a
person's approval. It records the decision and the outcome.

Commands exit with 0 for success, with 1 for a failure, and with 2 for a wrong command line.

Start with:  ` + t.self + ` up`,
		SilenceErrors:     true,
		SilenceUsage:      true,
		PersistentPreRunE: t.checkFlags,
		Args:              args(cobra.NoArgs),
		RunE:              help,
	}
	root.SetOut(t.out)
	root.SetErr(t.errOut)
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return usageError{fmt.Errorf("%w; see `%s --help`", err, c.CommandPath())}
	})
	flags := root.PersistentFlags()
	flags.StringVar(&t.config, "config", "", "the configuration file (SLUICE_CONFIG)")
	flags.StringVar(&t.addr, "addr", "", "the gRPC address of a running mesh (SLUICE_ADDR)")
	flags.StringVar(&t.data, "data", "", "the folder for state and tokens (SLUICE_DATA; default .sluice)")
	flags.StringVar(&t.cleartextTo, "token-in-cleartext-to", "", "a host that may get the agent's token without TLS, readable for other people on the network (SLUICE_TOKEN_IN_CLEARTEXT_TO)")
	flags.StringVarP(&t.output, "output", "o", "table", "the format: table or json")
	_ = root.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"table", "json"}, cobra.ShellCompDirectiveNoFileComp))
	root.AddCommand(
		t.initCommand(), t.up(), t.status(), t.doctor(), t.stop(), t.resume(), t.call(), t.stdio(), t.startMesh(), t.hook(), t.service(), t.tools(), t.policy(), t.catalog(), t.approvals(), t.agents(), t.decisions(), t.report(), t.journal(), t.configCommand(),
		t.certs(), t.setup(), t.login(), t.logout(), t.whoami(), t.connect(), t.disconnect(), t.connections(), t.token(), t.identity(), t.demoServer(), t.forward(), t.version(),
	)
	groupCommands(root)
	return root
}

func (t *tool) checkFlags(c *cobra.Command, _ []string) error {
	if t.output != "table" && t.output != "json" {
		return usageError{fmt.Errorf("--output must be table or json, is %q", t.output)}
	}
	if t.config == "" {
		t.config, _ = app.Env("SLUICE_CONFIG")
	}
	if t.cleartextTo == "" {
		t.cleartextTo, _ = app.Env("SLUICE_TOKEN_IN_CLEARTEXT_TO")
	}
	t.addrFrom = "--addr"
	if t.addr == "" {
		t.addr, _ = app.Env("SLUICE_ADDR")
		t.addrFrom = "SLUICE_ADDR"
	}
	if err := checkAddr(t.addrFrom, t.addr); err != nil {
		return err
	}
	t.commandName = strings.TrimPrefix(c.CommandPath(), t.self+" ")
	if err := cmp.Or(c.ValidateRequiredFlags(), c.ValidateFlagGroups()); err != nil {
		return usageError{fmt.Errorf("%w; see `%s --help`", err, c.CommandPath())}
	}
	return nil
}

// load reads the configuration for a request to a running mesh. It replaces port 0 with the port of the running mesh.
func (t *tool) load() (*config.File, error) {
	f, err := t.loadFile()
	if err != nil {
		return nil, err
	}
	return f, findAddresses(f)
}

// loadFile reads the configuration that the person has named, or else the configuration of the person's own mesh if
// there is one. --data takes precedence over the data directory in the configuration.
func (t *tool) loadFile() (*config.File, error) {
	f, err := config.Load(cmp.Or(t.config, t.personalConfig()), app.Env)
	if err != nil {
		return nil, err
	}
	if t.data != "" {
		f.SetData(t.data)
	}
	return f, nil
}

// args returns a function that checks arguments with the given function. It converts errors to usage errors, and
// suggests a similar command if there is one.
func args(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(c *cobra.Command, given []string) error {
		err := check(c, given)
		if err == nil {
			return nil
		}
		if meant := suggestion(c, given); meant != "" {
			return usageError{fmt.Errorf("%w; did you mean %q?", err, meant)}
		}
		return usageError{fmt.Errorf("%w; see `%s --help`", err, c.CommandPath())}
	}
}

// suggestion returns the subcommand whose name is similar to the first argument, or "" if there is no such subcommand.
func suggestion(c *cobra.Command, given []string) string {
	const typos = 2
	if len(given) == 0 || !c.HasSubCommands() {
		return ""
	}
	c.SuggestionsMinimumDistance = typos
	if names := c.SuggestionsFor(given[0]); len(names) > 0 {
		return names[0]
	}
	return ""
}

func (t *tool) version() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version, and how this program was built", Args: args(cobra.NoArgs),
		RunE: func(*cobra.Command, []string) error {
			build := app.ThisBuild()
			if t.json() {
				return t.printJSON(build)
			}
			_, err := fmt.Fprintf(t.out, "sluice %s\ncommit   %s\ndate     %s\ngo       %s\nplatform %s\n",
				build.Version, cmp.Or(build.Commit, "unknown"), cmp.Or(build.Date, "unknown"), build.Go, build.Platform)
			return err
		},
	}
}

func group(use, short string, children ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{Use: use, Short: short, Args: args(cobra.NoArgs), RunE: help}
	c.AddCommand(children...)
	return c
}

func help(c *cobra.Command, _ []string) error { return c.Help() }
