package cli

import (
	"os"
	"runtime"
	"slices"

	"github.com/sluice-mesh/sluice/services/internal/config"
	"github.com/sluice-mesh/sluice/services/sluice/internal/clientconfig"
	"github.com/sluice-mesh/sluice/services/sluice/internal/clientsetup"
)

// clientsOfServers returns the names of the clients that have an entry for a server, by server. It returns nil if the
// mesh is not the person's own mesh, or if the home directory is not known.
func (t *tool) clientsOfServers(f *config.File) map[string][]string {
	home, err := os.UserHomeDir()
	if err != nil || f.Name() == "" || f.Name() != t.personalConfig() {
		return nil
	}
	sys := clientconfig.System{OS: runtime.GOOS, Home: home, Getenv: getenv}
	return usersOfServers(clientsetup.Scan(sys, clientconfig.Clients(), ""))
}

func usersOfServers(files []clientsetup.Found) map[string][]string {
	out := make(map[string][]string)
	for _, f := range files {
		for _, e := range f.Entries {
			server, client := wrappedServer(e), f.File.Client.Name
			if server == "" || e.Disabled {
				continue
			}
			if !slices.Contains(out[server], client) {
				out[server] = append(out[server], client)
			}
		}
	}
	return out
}
