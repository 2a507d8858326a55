package cli

import "github.com/sluice-mesh/sluice/services/sluice/internal/clientsetup"

// behind returns what decides which entries of clients are behind the person's own mesh.
func (t *tool) behind() clientsetup.Behind {
	b := clientsetup.Behind{Program: t.programPath(), Undo: func(client string) string { return t.command("init --undo " + client) }}
	own, err := t.ownMesh()
	if err != nil {
		b.NoMesh = err.Error()
		return b
	}
	b.Servers = func(name string) bool { _, ok := own.file.Servers[name]; return ok }
	return b
}
