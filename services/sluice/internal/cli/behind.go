package cli

import (
	"os"

	"github.com/sluice-mesh/sluice/services/internal/app"
	"github.com/sluice-mesh/sluice/services/internal/config"
	"github.com/sluice-mesh/sluice/services/sluice/internal/clientsetup"
	"github.com/sluice-mesh/sluice/services/sluice/internal/personal"
)

// behindOwn returns the [clientsetup.Behind] for the mesh of the person who runs the command. behindHook returns the
// Behind for the mesh to which a hook sends its events.
func (t *tool) behindOwn() clientsetup.Behind  { return t.behind(t.ownMesh()) }
func (t *tool) behindHook() clientsetup.Behind { return t.behind(t.hookMesh()) }

// behind returns a Behind that uses the configuration of the given mesh. If the person has no mesh, own is nil and err
// is the reason.
func (t *tool) behind(own *ownMesh, err error) clientsetup.Behind {
	b := clientsetup.Behind{Program: t.programPath(), Undo: func(client string) string { return t.command("init --undo " + client) }}
	var f *config.File
	var paths personal.Paths
	if err == nil {
		paths = own.paths
		b.Config = own.config
		f, err = config.Load(own.config, app.Env)
	} else if found, noPaths := personal.Find(); noPaths == nil {
		paths = found
	}
	b.Elsewhere = func(url, client string) bool { return hasElsewhereToken(paths, url, client) }
	if err != nil {
		b.NoMesh = err.Error()
		return b
	}
	b.Servers = func(name string) bool { _, ok := f.Servers[name]; return ok }
	return b
}

// hasElsewhereToken reports whether `init --http` has stored the client's token for the mesh at the given URL.
func hasElsewhereToken(paths personal.Paths, url, client string) bool {
	at, err := paths.Elsewhere(url)
	if err != nil || paths.Data == "" || personal.CheckClient(client) != nil {
		return false
	}
	if info, err := os.Stat(at.Token(client)); err != nil || !info.Mode().IsRegular() {
		return false
	}
	_, err = at.ReadToken(client)
	return err == nil
}
