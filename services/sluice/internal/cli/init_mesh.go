package cli

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"syscall"
	"time"

	"github.com/sluice-mesh/sluice/services/sluice/internal/running"
)

// meshEndTimeout limits how long the program waits for a mesh to exit.
const meshEndTimeout = 40 * time.Second

// checkMesh returns an error if the mesh is running and `init` can't restart it.
func (s *setup) checkMesh() error {
	mesh, found, err := running.Find(s.paths.Data)
	if err != nil || !found || mesh.OnDemand {
		return err
	}
	if service, _, err := s.userService(); err == nil && service.Installed() {
		return fmt.Errorf("your mesh runs as a service, and reads its configuration only when it starts: run `%s service remove`, then this command, and then `%s service install`", s.self, s.self)
	}
	return fmt.Errorf("your mesh runs in the process %d, which no client has started, so this command can't restart it: stop it, run this command, and start it again", mesh.PID)
}

// restartMesh stops the mesh if a client has started it, and starts it with the new configuration. Clients of the old
// mesh then connect to the new one.
func (s *setup) restartMesh(ctx context.Context) error {
	if err := s.stopMesh(ctx); err != nil {
		return err
	}
	own, err := s.ownMesh()
	if err != nil {
		return err
	}
	if err := storeMeshEnvironment(own.data); err != nil {
		return err
	}
	_, err = own.find(ctx, true)
	return err
}

// stopMesh stops the mesh if a client has started it.
func (s *setup) stopMesh(ctx context.Context) error {
	mesh, found, err := running.Find(s.paths.Data)
	if err != nil || !found || !mesh.OnDemand {
		return err
	}
	return endMesh(ctx, s.paths.Data, mesh)
}

// endMesh stops a mesh and waits until it has closed its data directory.
func endMesh(ctx context.Context, data string, mesh running.Mesh) error {
	process, err := os.FindProcess(mesh.PID)
	if err == nil {
		if runtime.GOOS == "windows" { // Windows has no signal that ends a process without a console
			err = process.Kill()
		} else {
			err = process.Signal(syscall.SIGTERM)
		}
	}
	if err != nil {
		return fmt.Errorf("end the mesh (process %d): %w", mesh.PID, err)
	}
	ctx, cancel := context.WithTimeout(ctx, meshEndTimeout)
	defer cancel()
	if err := running.WaitEnded(ctx, data); err != nil {
		return err
	}
	return waitUnlocked(ctx, data)
}
