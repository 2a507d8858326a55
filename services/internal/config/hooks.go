package config

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sluice-mesh/sluice/services/internal/hosttools"
)

// addHosts adds the servers of the clients under hooks. It keeps a configured server with such a name, so that the
// validation reports it.
func (f *File) addHosts() {
	for _, client := range f.Hooks {
		name := hosttools.ServerName(client)
		if _, configured := f.Servers[name]; configured || hosttools.Name(client) == "" {
			continue
		}
		if f.Servers == nil {
			f.Servers = make(map[string]Server)
		}
		// The definitions are part of this program, so their annotations are trusted.
		f.Servers[name] = Server{host: client, Trusted: true}
	}
}

func (f *File) checkHooks(p *problems) {
	for i, client := range f.Hooks {
		path := fmt.Sprintf("hooks[%d]", i)
		if hosttools.Name(client) == "" {
			p.addf(path, "%q is not one of %s", client, strings.Join(hosttools.Clients(), ", "))
		}
		if slices.Contains(f.Hooks[:i], client) {
			p.addf(path, "%q is listed twice: remove one", client)
		}
	}
}
