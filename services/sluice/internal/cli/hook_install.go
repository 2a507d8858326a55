package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluice-mesh/sluice/services/internal/app"
	"github.com/sluice-mesh/sluice/services/internal/config"
	"github.com/sluice-mesh/sluice/services/internal/hosttools"
	"github.com/sluice-mesh/sluice/services/internal/pki"
	"github.com/sluice-mesh/sluice/services/sluice/internal/clientconfig"
	"github.com/sluice-mesh/sluice/services/sluice/internal/clientsetup"
	"github.com/sluice-mesh/sluice/services/sluice/internal/configedit"
	"github.com/sluice-mesh/sluice/services/sluice/internal/hooksetup"
	"github.com/sluice-mesh/sluice/services/sluice/internal/personal"
)

// hookTarget is one run of `hook install`, `hook remove` or `hook status`.
type hookTarget struct {
	*setup
	hooksetup.Target

	client clientconfig.Client
}

func (t *tool) hookInstall() *cobra.Command {
	return t.hookCommand("install", "Register the hook in the settings of a client",
		`Register Sluice's hook in the settings of a client, with a time-out of 300 s, and add the
client's tools to your mesh as the server host-CLIENT, with a first policy. The command creates
your mesh if necessary. It shows every change and asks before it writes. Clients start the mesh
with the PATH, and the variables for proxies and certificates, of this terminal: run the command
again to change them.`,
		(*hookTarget).install)
}

func (t *tool) hookRemove() *cobra.Command {
	return t.hookCommand("remove", "Remove the hook from the settings of a client",
		`Remove Sluice's hook from the settings of a client. If nothing else has changed the file since
hook install, it is restored byte for byte. With the client's last hook, the command also
removes its tools from the configuration of your mesh, and their policy unless you have changed
it.`,
		(*hookTarget).remove)
}

func (t *tool) hookStatus() *cobra.Command {
	c := t.hookCommand("status", "Show whether the hook of a client is registered and can work",
		`Show whether the hook of a client is registered, what prevents the client from running it, and
whether your mesh, which is started if necessary, answers it. The command reads your settings,
those of the administrator, and those of projects in this folder and the folders above. It can't
detect whether Codex trusts the hook, or whether Gemini CLI trusts the folder. It exits with 1
if calls of the client are not checked or are all denied, and without CLIENT also if no hook is
registered.`,
		(*hookTarget).status)
	one := c.RunE
	c.Use, c.Args = "status [CLIENT]", args(cobra.MaximumNArgs(1))
	c.RunE = func(c *cobra.Command, given []string) error {
		switch {
		case len(given) == 1:
			return one(c, given)
		case c.Flags().Changed("project"):
			return usageError{errors.New("--project needs a CLIENT")}
		}
		return t.allHookStatus(c.Context())
	}
	return c
}

func (t *tool) hookCommand(name, short, long string, run func(*hookTarget, context.Context) error) *cobra.Command {
	var project string
	var yes bool
	c := &cobra.Command{
		Use: name + " CLIENT", Short: short, Long: long + "\n\nCLIENT is " + strings.Join(hosttools.Clients(), ", ") + ".",
		Args:      args(cobra.ExactArgs(1)),
		ValidArgs: hosttools.Clients(),
		RunE: func(c *cobra.Command, given []string) error {
			target, err := t.hookTarget(given[0], project)
			if err != nil {
				return err
			}
			target.flags.yes = yes
			return run(target, c.Context())
		},
	}
	if name == "install" {
		c.Flags().BoolVar(&yes, "yes", false, "write the changes without asking")
	}
	c.Flags().StringVar(&project, "project", "", "only for the project in this folder, in .claude/settings.local.json (only Claude Code)")
	_ = c.MarkFlagDirname("project")
	return c
}

func (t *tool) hookTarget(id, project string) (*hookTarget, error) {
	client, ok := clientconfig.Find(id)
	if !ok || hosttools.Name(id) == "" {
		return nil, usageError{fmt.Errorf("%q is not one of %s", id, strings.Join(hosttools.Clients(), ", "))}
	}
	paths, err := personal.Find()
	if err != nil {
		return nil, err
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return nil, fmt.Errorf("find the settings of the client: %w", err)
	}
	if project != "" {
		if project, err = filepath.Abs(project); err != nil {
			return nil, fmt.Errorf("find the project: %w", err)
		}
	}
	if own, err := t.ownMesh(); err == nil {
		paths = own.paths
	}
	s := &setup{tool: t, paths: paths, system: clientconfig.System{OS: runtime.GOOS, Home: home, Getenv: getenv}}
	target, err := hooksetup.TargetOf(client, s.system, project)
	if err != nil {
		return nil, usageError{err}
	}
	target.Config = paths.Config
	return &hookTarget{setup: s, Target: target, client: client}, nil
}

// install registers the client's hook. It changes the mesh first, so that a registered hook is always known to the
// mesh.
func (h *hookTarget) install(ctx context.Context) error {
	if err := h.checkMesh(); err != nil {
		return err
	}
	if err := h.agree(ctx); err != nil {
		return err
	}
	for _, path := range []string{h.paths.OperatorToken(), h.paths.Token(h.client.ID)} {
		if _, err := ensureToken(path); err != nil {
			return fmt.Errorf("create a token: %w", err)
		}
	}
	policy, err := h.writePolicy()
	if err != nil {
		return err
	}
	mesh, err := h.configure(true)
	if err != nil {
		return err
	}
	if policy || mesh {
		if err := h.restartMesh(ctx); err != nil {
			return fmt.Errorf("%w\nThe settings of %s were not changed", err, h.client.Name)
		}
	} else if err := h.refreshEnvironment(); err != nil {
		return err
	}
	changed, err := h.Install(ctx, h.paths.Data, h.programPath())
	if err != nil {
		return err
	}
	if changed {
		h.printf("%s has the hook. Start %s again.", h.shownPath(h.Path), h.client.Name)
	} else {
		h.printf("%s had the hook already.", h.shownPath(h.Path))
	}
	h.printf("The policy is %s.", h.shownPath(h.policyPath()))
	h.printNotes()
	return nil
}

// printNotes prints actions and facts that the person should know.
func (h *hookTarget) printNotes() {
	switch h.client.ID {
	case "claude-code":
		h.printf("Claude Code has to be 2.1.200 or later, because earlier versions can ignore the hook. Versions up to 2.1.325 run commands in skills without it.")
	case hosttools.Codex:
		h.printf("Codex runs the hook only after you have trusted it: type /hooks in Codex. Until then, and again after each change of the hook, all calls pass.")
	case "gemini":
		h.printf("Gemini CLI runs calls without the hook in folders that are not trusted, in editors (gemini --acp), and if the hook takes longer than 300 s.")
	}
}

func (h *hookTarget) policyPath() string {
	return filepath.Join(h.paths.Policies(), hosttools.ServerName(h.client.ID)+".yaml")
}

// shippedPolicy returns the policy that install writes.
func (h *hookTarget) shippedPolicy() ([]byte, error) {
	return hooksetup.Policy(h.client.ID)
}

// writePolicy writes the policy if the file does not exist, and reports whether it wrote the file.
func (h *hookTarget) writePolicy() (bool, error) {
	if _, err := os.Stat(h.policyPath()); err == nil {
		return false, nil
	}
	text, err := h.shippedPolicy()
	if err != nil {
		return false, err
	}
	if err := pki.WriteFile(h.policyPath(), text, 0o600); err != nil {
		return false, fmt.Errorf("write the policy: %w", err)
	}
	return true, nil
}

// configure adds the client to the mesh's configuration if present is true, and otherwise removes it. It also adds
// missing tokens. It reports whether the configuration has changed.
func (h *hookTarget) configure(present bool) (bool, error) {
	before, after, err := h.configuration(present)
	if err != nil || bytes.Equal(before, after) {
		return false, err
	}
	if err := clientsetup.RecordRewrite(h.paths.Data, h.paths.Config, before, after); err != nil {
		return false, err
	}
	return true, pki.WriteFile(h.paths.Config, after, 0o600)
}

// configuration returns the content of the mesh's configuration before and after [hookTarget.configure].
func (h *hookTarget) configuration(present bool) (before, after []byte, err error) {
	before, err = os.ReadFile(h.paths.Config)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, fmt.Errorf("read your mesh's configuration: %w", err)
	}
	have := false
	if len(before) > 0 {
		f, err := config.Load(h.paths.Config, app.Env)
		if err != nil {
			return nil, nil, fmt.Errorf("your mesh's configuration does not load: %w", err)
		}
		have = f.HasHook(h.client.ID)
	}
	m := clientsetup.MeshFile{Data: h.paths.Data, User: userName(), Operator: h.paths.OperatorToken(), Tokens: map[string]string{h.client.ID: h.paths.Token(h.client.ID)}}
	after, err = m.Edit(before)
	if err == nil && have != present {
		after, err = withHook(after, h.client.ID, present)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", h.paths.Config, err)
	}
	return before, after, nil
}

// withHook returns the configuration with the client in the list of hooks, or without the client if present is false.
func withHook(content []byte, client string, present bool) ([]byte, error) {
	lists := configedit.Layout{Format: configedit.YAML, NameKey: "client"}
	edit := configedit.Edit{Path: []string{"hooks", client}}
	if present {
		edit.Value = configedit.Object{{Name: "client", Value: client}}
	}
	change, err := configedit.Apply(lists, content, edit)
	if err != nil {
		return nil, err
	}
	return change.After, nil
}

// remove removes the client's hook. It changes the client first, so that a registered hook is always known to the mesh.
func (h *hookTarget) remove(ctx context.Context) error {
	done, err := h.Remove(ctx, h.paths.Data)
	if err != nil {
		return err
	}
	path := h.shownPath(h.Path)
	switch {
	case !done.Found:
		h.printf("%s had no hook of Sluice.", path)
	case done.Deleted:
		h.printf("%s is removed, because hook install had created it.", path)
	case done.Exact:
		h.printf("%s is as it was before hook install, byte for byte.", path)
	default:
		h.printf("%s no longer contains Sluice's hook. Other changes since hook install stay.", path)
	}
	if other, err := h.otherRecords(); err != nil || other {
		return err
	}
	return h.removeFromMesh(ctx)
}

// otherRecords reports whether the client's hook is also registered in another settings file.
func (h *hookTarget) otherRecords() (bool, error) {
	records, err := hooksetup.Records(h.paths.Data)
	return slices.ContainsFunc(records, func(path string) bool {
		name := filepath.Base(path)
		return name == h.client.ID+".json" || strings.HasPrefix(name, h.client.ID+"-")
	}), err
}

// removeFromMesh removes the client's tools from the mesh. It also removes the client's policy, unless the policy
// differs from the policy that this version of Sluice writes.
func (h *hookTarget) removeFromMesh(ctx context.Context) error {
	if _, err := os.Stat(h.paths.Config); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	changed, err := h.configure(false)
	if err != nil {
		return err
	}
	want, err := h.shippedPolicy()
	if err != nil {
		return err
	}
	switch have, err := os.ReadFile(h.policyPath()); {
	case err == nil && bytes.Equal(have, want):
		if err := os.Remove(h.policyPath()); err != nil {
			return fmt.Errorf("remove the policy: %w", err)
		}
	case err == nil:
		h.printf("%s stays, because it was changed.", h.shownPath(h.policyPath()))
	}
	if !changed {
		return nil
	}
	return h.stopMesh(ctx) // the mesh starts again when a client needs it
}

// status prints the state of the hook. It returns errSilent if the hook does not work.
func (h *hookTarget) status(ctx context.Context) error {
	commands, err := h.Registered()
	if err != nil {
		return err
	}
	faults := h.faults(ctx, commands)
	for _, fault := range faults {
		h.printf("%s: %s", h.client.Name, fault)
	}
	if len(faults) > 0 {
		return errSilent
	}
	h.printf("%s: the hook is registered in %s, and the mesh knows the client's tools.", h.client.Name, h.shownPath(h.Path))
	h.printPolicyNote()
	h.printNotes()
	return nil
}

// printPolicyNote prints a note if the client's policy differs from the policy that this version of Sluice writes. An
// earlier version may have written it, or a person may have changed it. `hook install` does not replace such a policy.
func (h *hookTarget) printPolicyNote() {
	installed, err := os.ReadFile(h.policyPath())
	if err != nil {
		return // the rules can be in another file of the mesh
	}
	if shipped, err := h.shippedPolicy(); err == nil && !bytes.Equal(installed, shipped) {
		h.printf("%s differs from the policy of this version of Sluice. If you have not changed it, delete it and run %s.",
			h.shownPath(h.policyPath()), h.command("hook install "+h.client.ID))
	}
}

// faults returns the reasons why the hook does not work. The parameter commands is the result of
// [hooksetup.Target.Registered].
func (h *hookTarget) faults(ctx context.Context, commands []string) []string {
	var out []string
	if slices.Contains(commands, "") {
		return []string{fmt.Sprintf("the hook is not registered in %s: run %s", h.shownPath(h.Path), h.command("hook install "+h.client.ID))}
	}
	if want := h.Command(h.paths.Data, h.programPath()); slices.ContainsFunc(commands, func(c string) bool { return c != want }) {
		out = append(out, fmt.Sprintf("the hook starts another command (%s): run %s", commands[0], h.command("hook install "+h.client.ID)))
	}
	differences, err := h.Faults()
	if err != nil {
		out = append(out, err.Error())
	}
	for _, d := range differences {
		out = append(out, fmt.Sprintf("calls pass without the mesh, because %s: run %s", d, h.command("hook install "+h.client.ID)))
	}
	f, err := config.Load(h.paths.Config, app.Env)
	switch {
	case err != nil:
		out = append(out, fmt.Sprintf("all calls are denied, because your mesh's configuration does not load: %v", err))
	case !f.HasHook(h.client.ID):
		out = append(out, fmt.Sprintf("all calls are denied, because your mesh does not know the client's tools: run %s", h.command("hook install "+h.client.ID)))
	}
	if len(out) == 0 {
		out = h.meshFaults(ctx)
	}
	return append(out, h.settingsFaults()...)
}
