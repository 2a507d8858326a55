// Package running finds a person's running mesh. A mesh that uses free ports announces its addresses in its data
// directory, and holds a lock while it is running. If the lock is not held, the addresses are not used, because another
// program may be using the ports.
package running

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/gofrs/flock"

	"github.com/sluice-mesh/sluice/services/internal/pki"
)

// Mesh describes a running mesh.
type Mesh struct {
	// MCP and GRPC are the addresses of the mesh, as HOST:PORT.
	MCP  string `json:"mcp"`
	GRPC string `json:"grpc"`
	// PID is the ID of the mesh's process.
	PID int `json:"pid"`
	// OnDemand is true if a client started the mesh. Such a mesh exits when it is idle.
	OnDemand bool   `json:"on_demand"`
	Version  string `json:"version"`
	// Started is the time when the mesh was ready.
	Started time.Time `json:"started"`
	// Idle is how long a mesh that a client started runs without clients before it exits, such as 30m0s.
	Idle string `json:"idle,omitzero"`
}

const (
	addressesFile = "addresses.json"
	lockFile      = "running"
	// lockRetry is the interval between attempts to get a lock. A command that looks for the mesh holds the lock only
	// briefly.
	lockRetry = 5 * time.Millisecond
)

// An Announcement tells other processes that this process runs the mesh of a data directory.
type Announcement struct {
	path string
	lock *flock.Flock
}

// Announce announces that this process is running the mesh of a data directory. The caller must have locked the
// directory with [datadir.Open]. Announce waits until an earlier mesh has withdrawn its announcement, or until ctx is
// done.
func Announce(ctx context.Context, data string, m Mesh) (*Announcement, error) {
	a := &Announcement{filepath.Join(data, addressesFile), flock.New(filepath.Join(data, lockFile), flock.SetPermissions(0o600))}
	// The addresses of a killed mesh must be removed before this process holds the lock. Otherwise Find would return them.
	if err := os.Remove(a.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("announce the addresses of the mesh: %w", err)
	}
	if _, err := a.lock.TryLockContext(ctx, lockRetry); err != nil {
		return nil, fmt.Errorf("announce the addresses of the mesh: %w", err)
	}
	raw, err := json.Marshal(m)
	if err == nil {
		err = pki.WriteFile(a.path, raw, 0o600)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("announce the addresses of the mesh: %w", err), a.lock.Unlock())
	}
	return a, nil
}

// Close withdraws the announcement.
func (a *Announcement) Close() error {
	err := os.Remove(a.path)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return errors.Join(err, a.lock.Unlock())
}

// Find returns the running mesh of a data directory. The second result is false if no mesh is running.
func Find(data string) (m Mesh, found bool, err error) {
	path := filepath.Join(data, lockFile)
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) { // TryRLock would create the file
		return Mesh{}, false, nil
	}
	lock := flock.New(path)
	free, err := lock.TryRLock()
	if err != nil {
		return Mesh{}, false, fmt.Errorf("look for the mesh: %w", err)
	}
	if free {
		return Mesh{}, false, lock.Unlock()
	}
	raw, err := os.ReadFile(filepath.Join(data, addressesFile))
	if errors.Is(err, fs.ErrNotExist) { // the mesh is starting or stopping
		return Mesh{}, false, nil
	}
	if err == nil {
		err = json.Unmarshal(raw, &m)
	}
	if err != nil {
		return Mesh{}, false, fmt.Errorf("look for the mesh: read its addresses: %w", err)
	}
	return m, true, nil
}

// WaitEnded waits until no mesh is running. If ctx is done first, it returns the context's error.
func WaitEnded(ctx context.Context, data string) error {
	tick := time.NewTicker(lockRetry)
	defer tick.Stop()
	for {
		if _, found, err := Find(data); err != nil || !found {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("wait until the mesh has ended: %w", ctx.Err())
		}
	}
}
