package cli

import (
	"fmt"
	"path/filepath"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/sluice-mesh/sluice/services/sluice/internal/clientconfig"
	"github.com/sluice-mesh/sluice/services/sluice/internal/hookevent"
	"github.com/sluice-mesh/sluice/services/sluice/internal/hooksetup"
	"github.com/sluice-mesh/sluice/services/sluice/internal/userservice"
)

// markProtected returns the arguments of a call. It adds an argument with the path of a protected file if the call
// would change the file or read a secret. The protected files are Sluice's own files, and files with a client's hooks
// or MCP servers. Policies alone can't detect such calls, because they know neither symbolic links nor the working
// directory.
func (t *tool) markProtected(m *ownMesh, e hookevent.Event) (jsontext.Value, error) {
	sys, err := t.hookSystem()
	if err != nil {
		return nil, err
	}
	p := hooksetup.Protected{
		System: sys,
		Client: e.Client,
		Own:    append(m.serviceFiles(sys), filepath.Dir(m.config), m.data, m.program),
		Data:   m.data,
	}
	arguments, err := p.Mark(e.Dir, e.Tool, e.Input)
	if err != nil {
		return nil, fmt.Errorf("find the files of the call: %w", err)
	}
	return arguments, nil
}

// serviceFiles returns the path of the file that defines the mesh as a service of the operating system, and the
// directory with systemd's additions to this file.
func (m *ownMesh) serviceFiles(sys clientconfig.System) (out []string) {
	none := func(string) string { return "" }
	for _, env := range []func(string) string{sys.Getenv, none} { // the service may have been installed with other variables
		s := userservice.Service{OS: sys.OS, Data: m.data, Home: sys.Home, Getenv: env}
		if path, err := s.Path(); err == nil { // an error means that the system has no services
			out = append(out, path, path+".d")
		}
	}
	return out
}

// hookMesh returns the mesh that the hook's command line names. In that case, hookMesh ignores the environment, because
// the settings of a project can change the environment. If the command line names no mesh, hookMesh returns the mesh of
// the person who runs the client.
func (t *tool) hookMesh() (*ownMesh, error) {
	if t.data == "" { // an earlier version registered this hook
		return t.ownMesh()
	}
	return t.namedMesh(t.config, t.data)
}
