package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-mesh/sluice/services/internal/app"
	"github.com/sluice-mesh/sluice/services/sluice/internal/clientconfig"
	"github.com/sluice-mesh/sluice/services/sluice/internal/clientsetup"
	"github.com/sluice-mesh/sluice/services/sluice/internal/personal"
	"github.com/sluice-mesh/sluice/services/sluice/internal/secretstore"
)

// observeFor is how long the mesh allows all calls after `init --observe`.
const observeFor = 24 * time.Hour

type initFlags struct {
	observe, yes, undo, check, managed bool
	project                            string
	// force is true if undo also restores entries that were changed after `init`.
	force bool
	// http is the URL of a remote mesh. tokenFile is the path of a file with a token for this mesh. caFile is the path of
	// a file with the mesh's certificate authority.
	http, tokenFile, caFile string
	// trustLoopback is true if the URL of the remote mesh may be an http URL of this machine.
	trustLoopback bool
	// add is true if `init` also adds entries for servers of the remote mesh for which a client has no entry.
	add bool
}

func (f *initFlags) register(c *cobra.Command) {
	flags := c.Flags()
	flags.BoolVar(&f.observe, "observe", false, "refuse nothing for 24 hours, and record what the policies would decide")
	flags.BoolVar(&f.yes, "yes", false, "start the servers and write the changes without asking")
	flags.BoolVar(&f.undo, "undo", false, "restore the clients' files, and remove the mesh's configuration")
	flags.BoolVar(&f.force, "force", false, "with --undo: also restore entries that were changed since, and forget entries that can't be restored")
	flags.BoolVar(&f.check, "check", false, "list the servers that clients reach without the mesh")
	flags.BoolVar(&f.managed, "managed", false, "print the file with which an administrator limits one client to servers behind the mesh")
	flags.StringVar(&f.project, "project", "", "also look at the files of the project in this folder")
	flags.StringVar(&f.http, "http", "", "put the servers of one client behind the mesh at this `URL`")
	flags.StringVar(&f.tokenFile, "token-file", "", "with --http: the `FILE` with the client's token (default the stored token, or you are asked)")
	flags.StringVar(&f.caFile, "ca-file", "", "with --http: the `FILE` with the mesh's own certificate authority")
	flags.BoolVar(&f.trustLoopback, "trust-loopback", false, "with --http: accept an http URL of this machine, such as a tunnel; another user who listens on its port gets the token")
	flags.BoolVar(&f.add, "add", false, "with --http: also add the servers of the mesh that the client does not have")
	c.MarkFlagsMutuallyExclusive("undo", "check", "observe", "managed")
	c.MarkFlagsMutuallyExclusive("project", "yes")
	_ = c.MarkFlagDirname("project")
}

func (t *tool) initCommand() *cobra.Command {
	var f initFlags
	c := &cobra.Command{
		Use:   "init [CLIENT...]",
		Short: "Put the MCP servers of your clients behind the mesh, or take that back",
		Long: `Find the MCP servers in the configuration of your clients, and put them behind a mesh of your
own. Without CLIENT, the command looks at all clients that it knows: ` + clientList() + `.

The command starts each server directly and behind the mesh, and changes only the entries of
servers that behave the same. It shows every change, and asks before it writes. Secrets in the
entries move to the keychain of your system, or to files that only you can read. The first
policies allow tools that read, limit tools that write or run something, and require your
approval for tools that delete or overwrite something, or move money. Clients start the mesh
when they need it.

With --http, entries of one client are replaced by the servers of the same name in another mesh,
such as your team's. Entries with a path of this machine are not changed. The token is stored in
a file that only you can read. SLUICE_TOKEN is not used.

--undo restores the files of the clients, byte for byte if they have not changed since. Entries
whose connection was changed after init are only printed as they were before; --force restores
them too. --check exits with 1 if clients reach servers without the mesh, and with 2 if a file
can't be read.`,
		Example: "  " + t.self + " init\n  " + t.self + " init --undo\n  " + t.self + " init cursor --http https://mesh.example.com --token-file cursor.token",
		RunE: func(c *cobra.Command, given []string) error {
			clients, err := clientsNamed(given)
			if err != nil {
				return err
			}
			return t.runInit(c.Context(), f, clients)
		},
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return clientIDs(), cobra.ShellCompDirectiveNoFileComp
		},
	}
	f.register(c)
	return c
}

func clientIDs() []string {
	var out []string
	for _, c := range clientconfig.Clients() {
		out = append(out, c.ID)
	}
	return out
}

// clientList returns the IDs of all clients as lines for the help text.
func clientList() string {
	text, line := "", 0
	for i, id := range clientIDs() {
		if i > 0 {
			text, line = text+", ", line+len(id)+2 //nolint:mnd // ", "
		}
		if line > 80 {
			text, line = strings.TrimRight(text, " ")+"\n", len(id)
		}
		text += id
	}
	return text
}

// clientsNamed returns the clients with the given IDs, or all clients if no IDs are given.
func clientsNamed(ids []string) ([]clientconfig.Client, error) {
	if len(ids) == 0 {
		return clientconfig.Clients(), nil
	}
	var out []clientconfig.Client
	for _, id := range ids {
		c, ok := clientconfig.Find(id)
		if !ok {
			return nil, usageError{fmt.Errorf("%q is not a client that init knows: use one of %s", id, strings.Join(clientIDs(), ", "))}
		}
		out = append(out, c)
	}
	return out, nil
}

func (t *tool) runInit(ctx context.Context, f initFlags, clients []clientconfig.Client) error {
	if f.force && !f.undo {
		return usageError{errors.New("--force belongs to --undo")}
	}
	paths, err := personal.Find()
	if err != nil {
		return err
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return fmt.Errorf("find the files of clients: %w", err)
	}
	if f.project != "" {
		if f.project, err = filepath.Abs(f.project); err != nil {
			return fmt.Errorf("find the project: %w", err)
		}
		if info, err := os.Stat(f.project); err != nil || !info.IsDir() {
			return usageError{fmt.Errorf("--project: %s is not a folder", f.project)}
		}
	}
	s := &setup{
		tool: t, flags: f, paths: paths, clients: clients, known: t.behindOwn(),
		system: clientconfig.System{OS: runtime.GOOS, Home: home, Getenv: getenv},
	}
	switch {
	case f.http == "" && (f.tokenFile != "" || f.caFile != "" || f.add || f.trustLoopback):
		return usageError{errors.New("--token-file, --ca-file, --trust-loopback and --add need --http")}
	case f.http != "" && (f.check || f.undo || f.managed):
		return usageError{errors.New("--check, --undo and --managed include the entries for all meshes: leave out --http")}
	case f.http != "" && f.observe:
		return usageError{errors.New("--observe is for your own mesh: the operator of the mesh at the URL decides what its policies refuse")}
	case f.check:
		return s.check()
	case f.managed:
		return s.managed()
	case f.undo:
		return s.undo(ctx)
	case !f.yes && !isInteractive(false):
		return errors.New("init asks before it starts servers and before it changes files, and there is no terminal to ask you at: add --yes to agree in advance")
	case f.http != "":
		return s.installElsewhere(ctx)
	default:
		return s.install(ctx)
	}
}

// getenv returns the value of an environment variable, or an empty string if it is not set.
func getenv(name string) string {
	value, _ := app.Env(name)
	return value
}

// setup is one run of `init`.
type setup struct {
	*tool

	flags   initFlags
	paths   personal.Paths
	clients []clientconfig.Client
	system  clientconfig.System
	// known determines which entries went through the mesh before this run.
	known clientsetup.Behind

	plan    *clientsetup.Plan
	state   *clientsetup.State
	changes []clientsetup.Change
	trials  []trial
	// trialDir is the directory of the temporary mesh in which servers were tried, or "" if there was none.
	trialDir string
	// observed is the result of planObserve for `init --observe`.
	observed observation
	// meshEdit is the change to the mesh's configuration.
	meshEdit *clientsetup.MeshEdit
	secrets  *secretstore.Store
}

// scan reads the clients' files. If project is not empty, it also reads the files in this project. It determines which
// entries already go through the mesh.
func (s *setup) scan(project string) []clientsetup.Found {
	found := clientsetup.Scan(s.system, s.clients, project)
	for _, f := range found {
		s.known.Check(f.File, f.Entries)
	}
	return found
}

// shownPath returns a path with ~ in place of the home directory.
func (s *setup) shownPath(path string) string {
	if rest, ok := strings.CutPrefix(path, s.system.Home+string(filepath.Separator)); ok {
		return filepath.Join("~", rest)
	}
	return path
}
