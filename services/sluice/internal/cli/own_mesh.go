package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/gofrs/flock"

	"github.com/sluice-mesh/sluice/services/internal/app"
	"github.com/sluice-mesh/sluice/services/internal/config"
	"github.com/sluice-mesh/sluice/services/sluice/internal/personal"
	"github.com/sluice-mesh/sluice/services/sluice/internal/running"
)

const (
	// meshStartTimeout limits how long a client waits for a mesh to start. A start takes about a second on an idle
	// machine, and can take much longer on a busy one. If a client stops waiting earlier, the mesh continues to start, and
	// the client finds it at its next attempt.
	meshStartTimeout = 45 * time.Second
	findInterval     = 10 * time.Millisecond
	// maxUpLog is the maximum size in bytes of the log from earlier meshes. A larger log is replaced before a mesh starts.
	maxUpLog = 1 << 20
)

// personalConfig returns the path of the configuration of the person's own mesh if commands should use this mesh, and
// otherwise "". Commands should use it if the configuration exists, the person has named no other mesh, and no mesh has
// run in the working directory.
func (t *tool) personalConfig() string {
	if data, ok := app.Env("SLUICE_DATA"); t.data != "" || ok && data != "" {
		return ""
	}
	if _, err := os.Stat(config.Default().Data); err == nil {
		return ""
	}
	paths, err := personal.Find()
	if err != nil {
		return ""
	}
	if _, err := os.Stat(paths.Config); err != nil {
		return ""
	}
	return paths.Config
}

func isFreePort(address string) bool {
	_, port, err := net.SplitHostPort(address)
	return err == nil && port == "0"
}

// findAddresses replaces addresses with port 0 in the configuration with the addresses of the running mesh. It changes
// nothing if no mesh is running.
func findAddresses(f *config.File) error {
	if !isFreePort(f.Listen) && !isFreePort(f.GRPC) {
		return nil
	}
	mesh, found, err := running.Find(f.Path(f.Data))
	if err != nil || !found {
		return err
	}
	if isFreePort(f.Listen) {
		f.Listen = mesh.MCP
	}
	if isFreePort(f.GRPC) {
		f.GRPC = mesh.GRPC
	}
	return nil
}

func (t *tool) errNotRunning() error {
	return fmt.Errorf("the mesh is not running: is it up? Start it with %s; your own mesh, which %s sets up, also starts when a client starts a server", t.command("up"), t.command("init"))
}

// An ownMesh is the mesh of the person who runs this program.
type ownMesh struct {
	program string
	paths   personal.Paths
	// config is the path of the configuration. data is the data directory in the configuration.
	config, data string
}

func (t *tool) ownMesh() (*ownMesh, error) {
	paths, err := personal.Find()
	if err != nil {
		return nil, err
	}
	return t.meshOf(paths.Config)
}

// meshOf returns the person's own mesh with the configuration at the given path, which must be absolute.
func (t *tool) meshOf(path string) (*ownMesh, error) {
	if !filepath.IsAbs(path) {
		return nil, usageError{fmt.Errorf("--config must be an absolute path here, and is %q", path)}
	}
	if _, err := os.Stat(path); err != nil {
		return nil, fmt.Errorf("you have no mesh of your own yet: run %s (%w)", t.command("init"), err)
	}
	f, err := config.Load(path, app.Env)
	if err != nil {
		return nil, err
	}
	m := &ownMesh{program: t.programPath(), config: path, data: f.Path(f.Data)}
	m.paths = personal.Paths{Config: path, Data: m.data}
	return m, nil
}

// namedMesh returns the person's own mesh with this configuration and data directory. It ignores the environment.
func (t *tool) namedMesh(config, data string) (*ownMesh, error) {
	if !filepath.IsAbs(config) || !filepath.IsAbs(data) {
		return nil, usageError{fmt.Errorf("--config and --data must both be absolute paths here: they are %q and %q", config, data)}
	}
	if _, err := os.Stat(config); err != nil {
		return nil, fmt.Errorf("you have no mesh of your own at %s: run %s (%w)", config, t.command("init"), err)
	}
	return &ownMesh{program: t.programPath(), paths: personal.Paths{Config: config, Data: data}, config: config, data: data}, nil
}

// find returns the running mesh. If start is true and no mesh is running, find starts one.
func (m *ownMesh) find(ctx context.Context, start bool) (running.Mesh, error) {
	mesh, found, err := running.Find(m.data)
	switch {
	case err != nil || found:
		return mesh, err
	case !start:
		return mesh, errors.New("your mesh is not running")
	}
	ctx, cancel := context.WithTimeout(ctx, meshStartTimeout)
	defer cancel()
	if err := os.MkdirAll(m.data, 0o700); err != nil {
		return mesh, fmt.Errorf("start your mesh: %w: if this program runs in a sandbox of its client, run `sluice service install` outside of it", err)
	}
	// Several processes may reach this point at the same time, because clients start several servers at once. Only one of
	// them starts the mesh.
	lock := flock.New(filepath.Join(m.data, "start.lock"), flock.SetPermissions(0o600))
	if _, err := lock.TryLockContext(ctx, findInterval); err != nil {
		return mesh, fmt.Errorf("start your mesh: another program starts it, and it is not ready after %v: see %s (%w)", meshStartTimeout, m.logPath(), err)
	}
	defer lock.Unlock() //nolint:errcheck // the end of the process also unlocks it
	if mesh, found, err := running.Find(m.data); err != nil || found {
		return mesh, err
	}
	return m.startOutside(ctx)
}

func (m *ownMesh) logPath() string { return filepath.Join(m.data, "up.log") }

// start starts the mesh in a separate process that continues after this process. It waits until the mesh is ready.
func (m *ownMesh) start(ctx context.Context) (running.Mesh, error) {
	log, begin, err := m.openLog()
	if err != nil {
		return running.Mesh{}, fmt.Errorf("start your mesh: %w", err)
	}
	defer log.Close()                                                                                                  //nolint:errcheck // the mesh has its own descriptor
	cmd := exec.Command(m.program, "up", "--on-demand", "--config", m.config, "--data", m.data, "--log-level", "warn") //nolint:gosec,noctx // this program; the mesh outlives ctx
	env, err := meshEnvironment(m.data, app.Environ())
	if err != nil {
		return running.Mesh{}, fmt.Errorf("start your mesh: %w", err)
	}
	cmd.Stdout, cmd.Stderr, cmd.Dir, cmd.Env = log, log, m.data, env
	detach(cmd)
	if err := cmd.Start(); err != nil {
		return running.Mesh{}, fmt.Errorf("start your mesh: %w", err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait() // if the mesh fails, the log contains the reason
	}()
	tick := time.NewTicker(findInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ended:
			// Another mesh may have been started in the meantime, for example by `sluice up`.
			if mesh, found, err := running.Find(m.data); err != nil || found {
				return mesh, err
			}
			return running.Mesh{}, fmt.Errorf("your mesh did not start. The end of %s:\n%s", m.logPath(), m.logEnd(begin))
		case <-ctx.Done():
			return running.Mesh{}, m.errNotReady()
		}
		if mesh, found, err := running.Find(m.data); err != nil || found {
			return mesh, err
		}
	}
}

// openLog opens the log for the next mesh. It also returns the current size of the log.
func (m *ownMesh) openLog() (_ *os.File, begin int64, err error) {
	if info, err := os.Stat(m.logPath()); err == nil && info.Size() > maxUpLog {
		if err := os.Rename(m.logPath(), m.logPath()+".old"); err != nil {
			return nil, 0, err
		}
	}
	f, err := os.OpenFile(m.logPath(), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, 0, err
	}
	info, err := f.Stat()
	if err != nil {
		return nil, 0, errors.Join(err, f.Close())
	}
	return f, info.Size(), nil
}

// logEnd returns the last lines that were written to the log after the given offset.
func (m *ownMesh) logEnd(begin int64) string {
	f, err := os.Open(m.logPath())
	if err != nil {
		return err.Error()
	}
	defer f.Close() //nolint:errcheck // only read
	tail := &tailBuffer{}
	if _, err = f.Seek(begin, io.SeekStart); err == nil {
		_, err = io.Copy(tail, f)
	}
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(tail.buf))
}
