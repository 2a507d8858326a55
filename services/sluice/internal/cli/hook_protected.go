package cli

import (
	"fmt"
	"path/filepath"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/sluice-mesh/sluice/services/sluice/internal/hookevent"
	"github.com/sluice-mesh/sluice/services/sluice/internal/hooksetup"
)

// markProtected returns the arguments of a call. If the call would change a file of Sluice, or a file with the hooks or
// MCP servers of a client, it adds an argument with the path of the file. Policies can't detect such calls, because
// they know neither symbolic links nor the working directory.
func (t *tool) markProtected(m *ownMesh, e hookevent.Event) (jsontext.Value, error) {
	sys, err := t.hookSystem()
	if err != nil {
		return nil, err
	}
	p := hooksetup.Protected{System: sys, Own: []string{filepath.Dir(m.config), m.data, m.program}}
	arguments, err := p.Mark(e.Dir, e.Tool, e.Input)
	if err != nil {
		return nil, fmt.Errorf("find the files that the call changes: %w", err)
	}
	return arguments, nil
}

// hookMesh returns the mesh that the command line of the hook names. Then the environment does not count, because the
// settings of a project can change it. If the command line names no mesh, hookMesh returns the person's own mesh.
func (t *tool) hookMesh() (*ownMesh, error) {
	if t.data == "" { // a hook that an earlier version has registered
		return t.ownMesh()
	}
	return t.namedMesh(t.config, t.data)
}
