package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/gofrs/flock"
	"github.com/spf13/cobra"

	"github.com/sluice-mesh/sluice/services/internal/app"
	"github.com/sluice-mesh/sluice/services/internal/datadir"
	"github.com/sluice-mesh/sluice/services/sluice/internal/personal"
	"github.com/sluice-mesh/sluice/services/sluice/internal/running"
	"github.com/sluice-mesh/sluice/services/sluice/internal/userservice"
)

func (t *tool) service() *cobra.Command {
	return group("service", "Start your own mesh at log-on instead of on demand", t.serviceInstall(), t.serviceRemove(), t.serviceStatus())
}

func (t *tool) serviceInstall() *cobra.Command {
	var yes bool
	c := &cobra.Command{
		Use:   "install",
		Short: "Start your mesh now and at each log-on",
		Long: `Make your own mesh a service of your user, without administrator rights: a systemd user unit on
Linux, a LaunchAgent on macOS, a task of the Task Scheduler on Windows. The command shows what
it writes and asks first. Connected clients continue with the service. The service gets the
PATH, and the variables for proxies and certificates, of this terminal: run the command again
when they change.`,
		Args: args(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error { return t.installService(c.Context(), yes) },
	}
	c.Flags().BoolVar(&yes, "yes", false, "write without asking")
	return c
}

func (t *tool) serviceRemove() *cobra.Command {
	return &cobra.Command{
		Use:   "remove",
		Short: "End the service, and remove what install has written",
		Long: `End the service and remove what install has written, unless another program or a person has
written or changed it. From then on, clients start the mesh when they need it.`,
		Args: args(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error { return t.removeService(c.Context()) },
	}
}

func (t *tool) serviceStatus() *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show whether the service is installed and running",
		Long:  "Show whether the service is installed and running. The command exits with 1 if it is not running.",
		Args:  args(cobra.NoArgs),
		RunE:  func(c *cobra.Command, _ []string) error { return t.printService(c.Context()) },
	}
}

// userService returns the operating-system service that runs the person's own mesh. The mesh's configuration may be
// missing, because `init --undo` removes it before the service is removed.
func (t *tool) userService() (*userservice.Service, *ownMesh, error) {
	paths, err := personal.Find()
	if err != nil {
		return nil, nil, err
	}
	own := &ownMesh{program: t.programPath(), paths: paths, config: paths.Config, data: paths.Data}
	if _, err := os.Stat(paths.Config); err == nil {
		if own, err = t.ownMesh(); err != nil {
			return nil, nil, err
		}
	}
	s, err := newUserService(own)
	return s, own, err
}

func newUserService(own *ownMesh) (*userservice.Service, error) {
	home, err := os.UserHomeDir()
	if err != nil {
		return nil, fmt.Errorf("find the definition of the service: %w", err)
	}
	who, err := user.Current()
	if err != nil {
		return nil, fmt.Errorf("find your user: %w", err)
	}
	return &userservice.Service{
		OS: runtime.GOOS, Program: own.program, Config: own.config, Data: own.data,
		Home: home, User: who.Username, UID: strconv.Itoa(os.Getuid()), Run: userservice.Run,
		Getenv: func(name string) string { value, _ := app.Env(name); return value },
	}, nil
}

func (t *tool) installService(ctx context.Context, yes bool) error {
	own, err := t.ownMesh()
	if err != nil {
		return err
	}
	s, err := newUserService(own)
	if err != nil {
		return err
	}
	path, err := s.Path()
	if err != nil {
		return err
	}
	before, err := s.Status(ctx)
	if err != nil {
		return err
	}
	if before.Manager != nil {
		return before.Manager
	}
	if before.State == userservice.Absent || before.State == userservice.Outdated {
		if err := t.confirmDefinition(ctx, s, path, yes); err != nil {
			return err
		}
	}
	if err := own.startService(ctx, s, before.Active); err != nil {
		return err
	}
	return oneLine(t.out, "The service runs your mesh, now and from each log-on. Its definition is %s.", path)
}

// confirmDefinition shows the file that install will write, and asks the person for confirmation.
func (t *tool) confirmDefinition(ctx context.Context, s *userservice.Service, path string, yes bool) error {
	text, err := s.Definition()
	if err != nil {
		return err
	}
	fmt.Fprintf(t.errOut, "%s:\n\n  %s\n\n", path, strings.ReplaceAll(strings.TrimSuffix(text, "\n"), "\n", "\n  "))
	if !yes && !isInteractive(false) {
		return errors.New("install asks before it writes, and there is no terminal to ask you at: add --yes to agree in advance")
	}
	return t.confirm(ctx, yes, "Write this file and start the service?")
}

// startService starts the operating-system service that runs the mesh. If a client has started the mesh, startService
// first stops this mesh. active is true if the service was already running.
func (m *ownMesh) startService(ctx context.Context, s *userservice.Service, active bool) error {
	ctx, cancel := context.WithTimeout(ctx, meshEndTimeout+meshStartTimeout)
	defer cancel()
	// While this lock is held, no client starts a mesh.
	lock := flock.New(filepath.Join(m.data, "start.lock"), flock.SetPermissions(0o600))
	if _, err := lock.TryLockContext(ctx, findInterval); err != nil {
		return fmt.Errorf("wait for a client that starts your mesh: %w", err)
	}
	defer lock.Unlock() //nolint:errcheck // the end of the process also unlocks it
	mesh, found, err := running.Find(m.data)
	switch {
	case err != nil:
		return err
	case found && !mesh.OnDemand && !active:
		return fmt.Errorf("your mesh already runs in the process %d, for example in a terminal: stop it, and run this command again", mesh.PID)
	case found && mesh.OnDemand:
		if err := endMesh(ctx, m.data, mesh); err != nil {
			return err
		}
	}
	if !active {
		if err := waitUnlocked(ctx, m.data); err != nil {
			return err
		}
	}
	if err := s.Install(ctx); err != nil {
		return err
	}
	return m.waitService(ctx, s)
}

// waitUnlocked waits until no process has locked the data directory. A mesh that is stopping may still write to its
// journal after running.Find has stopped reporting it.
func waitUnlocked(ctx context.Context, data string) error {
	for {
		dir, err := datadir.Open(data, "")
		if err == nil {
			return dir.Close()
		}
		if !errors.Is(err, datadir.ErrInUse) {
			return err
		}
		select {
		case <-time.After(findInterval):
		case <-ctx.Done():
			return fmt.Errorf("wait until the mesh has ended: %w", err)
		}
	}
}

// waitService waits until the mesh that the service runs is ready.
func (m *ownMesh) waitService(ctx context.Context, s *userservice.Service) error {
	ctx, cancel := context.WithTimeout(ctx, meshStartTimeout)
	defer cancel()
	for {
		mesh, found, err := running.Find(m.data)
		if err != nil || found && !mesh.OnDemand {
			return err
		}
		select {
		case <-time.After(findInterval):
		case <-ctx.Done():
			text := fmt.Sprintf("the service is installed, but your mesh is not ready after %v", meshStartTimeout)
			if st, err := s.Status(context.WithoutCancel(ctx)); err == nil && st.Log != "" {
				text += ": see " + st.Log
			}
			return errors.New(text)
		}
	}
}

func (t *tool) removeService(ctx context.Context) error {
	s, _, err := t.userService()
	if err != nil {
		return err
	}
	removed, err := s.Remove(ctx)
	if err != nil {
		return err
	}
	if !removed {
		return oneLine(t.out, "There is no service to remove.")
	}
	return oneLine(t.out, "The service has ended and is removed. A client starts the mesh when it needs it.")
}

type serviceStatus struct {
	Installed  bool   `json:"installed"`
	Active     bool   `json:"active"`
	Definition string `json:"definition"`
	Note       string `json:"note,omitzero"`
	Log        string `json:"log,omitzero"`
	Mesh       string `json:"mesh"`
}

func (t *tool) printService(ctx context.Context) error {
	s, own, err := t.userService()
	if err != nil {
		return err
	}
	path, err := s.Path()
	if err != nil {
		return err
	}
	st, err := s.Status(ctx)
	if err != nil {
		return err
	}
	mesh, found, err := running.Find(own.data)
	if err != nil {
		return err
	}
	out := serviceStatus{
		Installed: st.State != userservice.Absent, Active: st.Active, Definition: path,
		Note: t.serviceNote(st), Log: st.Log, Mesh: describeMesh(mesh, found),
	}
	if err := t.writeService(out); err != nil {
		return err
	}
	if !out.Active {
		return errSilent
	}
	return nil
}

func (t *tool) serviceNote(st userservice.Status) string {
	switch {
	case st.Manager != nil:
		return st.Manager.Error()
	case st.State == userservice.Outdated:
		return "its definition differs from what " + t.command("service install") + " would write in this terminal"
	case st.State == userservice.Foreign:
		return "another program or a person has written or changed its definition"
	default:
		return ""
	}
}

func describeMesh(mesh running.Mesh, found bool) string {
	switch {
	case !found:
		return "does not run"
	case mesh.OnDemand:
		return fmt.Sprintf("runs in the process %d, started by a client", mesh.PID)
	default:
		return fmt.Sprintf("runs in the process %d", mesh.PID)
	}
}

func (t *tool) writeService(s serviceStatus) error {
	if t.json() {
		return t.printJSON(s)
	}
	rows := [][]string{
		{"installed", strconv.FormatBool(s.Installed)},
		{"active", strconv.FormatBool(s.Active)},
		{"definition", s.Definition},
		{"mesh", s.Mesh},
	}
	if s.Log != "" {
		rows = append(rows, []string{"log", s.Log})
	}
	if err := t.table([]string{"WHAT", "STATE"}, rows); err != nil || s.Note == "" {
		return err
	}
	return oneLine(t.out, "\nNote: %s", s.Note)
}

// nameService prints a note if the operating-system service is still installed.
func (s *setup) nameService() error {
	service, _, err := s.userService()
	if err != nil {
		return err
	}
	if service.Installed() {
		s.printf("The mesh is still installed as a service: remove it with %s.", s.command("service remove"))
	}
	return nil
}
