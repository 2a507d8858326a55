package cli

import (
	"fmt"
	"os"
	"time"

	"github.com/sluice-mesh/sluice/services/internal/app"
	"github.com/sluice-mesh/sluice/services/internal/config"
	"github.com/sluice-mesh/sluice/services/sluice/internal/personal"
	"github.com/sluice-mesh/sluice/services/sluice/internal/running"
)

// announced returns a description of this process, with which other commands find the mesh. f must contain the
// addresses on which the process actually listens.
func (i idleFlags) announced(f *config.File) running.Mesh {
	m := running.Mesh{MCP: f.Listen, GRPC: f.GRPC, PID: os.Getpid(), OnDemand: i.onDemand, Version: app.Version(), Started: time.Now()}
	if i.onDemand {
		m.Idle = i.after.String()
	}
	return m
}

// onDemandText says when the configuration's mesh was started and when it will stop, if a client has started it.
// Otherwise it returns "".
func (t *tool) onDemandText(f *config.File) string {
	if t.addr != "" { // the address may belong to another mesh
		return ""
	}
	mesh, found, err := running.Find(f.Path(f.Data))
	if err != nil || !found || !mesh.OnDemand {
		return ""
	}
	return fmt.Sprintf("a client started it at %s, as the process %d; it ends when no client has been connected for %s and it has no work left",
		mesh.Started.Local().Format(time.DateTime), mesh.PID, mesh.Idle)
}

// checkOnDemand returns check results about a mesh that clients start on demand. The second result is false if this
// mesh is not running. In that case there is no problem, because the next client starts the mesh.
func (t *tool) checkOnDemand(f *config.File) (out []checkResult, ok bool) {
	if text := t.onDemandText(f); text != "" {
		return []checkResult{{State: stateOK, Subject: "on demand", Result: text}}, true
	}
	if t.addr == "" && isFreePort(f.GRPC) && isPersonal(f) {
		return []checkResult{{stateWarning, "mesh", "it is not running, so only its files were checked", "a client starts it when it needs it, or you with " + t.command("up")}}, false
	}
	return nil, true
}

// isPersonal reports whether a configuration belongs to the person's own mesh. Clients start this mesh on demand.
func isPersonal(f *config.File) bool {
	paths, err := personal.Find()
	return err == nil && f.Name() == paths.Config
}
