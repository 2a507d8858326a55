package config

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sluice-mesh/sluice/services/internal/hosttools"
)

// Hook is a client that asks the gateway about calls to its own tools.
type Hook struct {
	// Client is `claude-code`, `codex` or `gemini`. Its own tools belong to the server `host-CLIENT`. Required.
	Client string `yaml:"client"`
}

// HasHook reports whether a client is listed under hooks.
func (f *File) HasHook(client string) bool {
	return slices.Contains(f.Hooks, Hook{Client: client})
}

// addHosts adds a server for each client in f.Hooks. If the file already configures a server with the same name,
// addHosts keeps the configured server, so that the validation reports it.
func (f *File) addHosts() {
	for _, hook := range f.Hooks {
		name := hosttools.ServerName(hook.Client)
		if _, configured := f.Servers[name]; configured || hosttools.Name(hook.Client) == "" {
			continue
		}
		if f.Servers == nil {
			f.Servers = make(map[string]Server)
		}
		// The definitions of the client's own tools are part of this program, so their annotations are trusted.
		f.Servers[name] = Server{host: hook.Client, Trusted: true}
	}
}

func (f *File) checkHooks(p *problems) {
	for i, hook := range f.Hooks {
		path := fmt.Sprintf("hooks[%d]", i)
		if hosttools.Name(hook.Client) == "" {
			p.addf(path+".client", "%q is not one of %s", hook.Client, strings.Join(hosttools.Clients(), ", "))
		}
		if slices.Contains(f.Hooks[:i], hook) {
			p.addf(path, "%q is listed twice: remove one", hook.Client)
		}
	}
}
