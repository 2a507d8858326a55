package cli

import (
	"github.com/sluice-mesh/sluice/services/internal/app"
	"github.com/sluice-mesh/sluice/services/internal/config"
	"github.com/sluice-mesh/sluice/services/sluice/internal/clientsetup"
)

// behind returns what decides which entries of clients are behind the mesh in the configuration file at path. If err is
// not nil, it is the reason for which the person has no mesh.
func (t *tool) behind(path string, err error) clientsetup.Behind {
	b := clientsetup.Behind{Program: t.programPath(), Undo: func(client string) string { return t.command("init --undo " + client) }}
	var f *config.File
	if err == nil {
		f, err = config.Load(path, app.Env)
	}
	if err != nil {
		b.NoMesh = err.Error()
		return b
	}
	b.Servers = func(name string) bool { _, ok := f.Servers[name]; return ok }
	return b
}

// behindOwn is behind for the person's own mesh, and behindHook for the mesh that a hook asks.
func (t *tool) behindOwn() clientsetup.Behind  { return t.behindMesh(t.ownMesh()) }
func (t *tool) behindHook() clientsetup.Behind { return t.behindMesh(t.hookMesh()) }

func (t *tool) behindMesh(own *ownMesh, err error) clientsetup.Behind {
	if err != nil {
		return t.behind("", err)
	}
	return t.behind(own.config, nil)
}
