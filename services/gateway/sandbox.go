package gateway

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/config"
	"github.com/sluice-mesh/sluice/services/internal/sandbox"
)

// serversFolder is where, in the gateway's data, servers have their folders.
const serversFolder = "servers"

// Sandbox says what a server over stdio is kept away from, beside what is the
// mesh's own.
type Sandbox struct {
	// Mode says how much of it has to hold.
	Mode sandbox.Mode
	// Read and Write are absolute paths that it reaches although they are hidden.
	Read, Write []string
	// NoNetwork leaves it without a network.
	NoNetwork bool
}

// sandboxFrom returns what the file says.
func sandboxFrom(f *config.File, s *config.StdioSandbox) Sandbox {
	out := Sandbox{NoNetwork: s.Network != nil && !*s.Network}
	switch s.Mode {
	case "auto":
		out.Mode = sandbox.Auto
	case "off":
		out.Mode = sandbox.Off
	default:
		out.Mode = sandbox.Required
	}
	for _, path := range s.Read {
		out.Read = append(out.Read, absolute(f.Path(path)))
	}
	for _, path := range s.Write {
		out.Write = append(out.Write, absolute(f.Path(path)))
	}
	return out
}

// absolute returns a path as it is seen from everywhere.
func absolute(path string) string {
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}
	return path
}

// rules are those of a server over stdio.
func (c *Config) rules(name string, env config.Env) sandbox.Rules {
	s := c.Servers[name].Sandbox
	r := sandbox.Rules{
		Mode: s.Mode, Secret: append([]string{absolute(c.Data)}, c.Secrets...), Private: append([]string{c.workRoot()}, c.Documents...),
		Programs: ownPrograms(), Read: s.Read, Write: s.Write, NoNetwork: s.NoNetwork,
	}
	if env != nil {
		r.Home, _ = env("HOME")
	}
	return r
}

// workRoot is where servers have their folders.
func (c *Config) workRoot() string { return absolute(filepath.Join(c.Data, "gateway", serversFolder)) }

// ownPrograms are the programs of the mesh that lie where this one does.
func ownPrograms() []string {
	self, err := os.Executable()
	if err != nil {
		return nil
	}
	found, names := []string{self}, []string{"sluice"}
	for _, role := range authn.Roles() {
		names = append(names, authn.RoleName(role))
	}
	for _, name := range names {
		path := filepath.Join(filepath.Dir(self), name)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && path != self {
			found = append(found, path)
		}
	}
	return found
}

// checkSandbox says what a server is to reach and must not.
func (c *Config) checkSandbox(name string) error {
	s := c.Servers[name]
	if len(s.Command) == 0 || s.Sandbox.Mode == sandbox.Off {
		return nil
	}
	rules := c.rules(name, nil)
	if err := rules.Check(); err != nil {
		return fmt.Errorf("servers.%s.stdio.sandbox.%w", name, err)
	}
	if s.Dir != "" {
		if err := rules.MayOwn(absolute(s.Dir)); err != nil {
			return fmt.Errorf("servers.%s.stdio.dir: %w", name, err)
		}
	}
	return nil
}

// Holds returns what this system would hold of the sandbox of each server over
// stdio, by name. Errors: those servers that would not be started.
func Holds(cfg Config, launcher sandbox.Launcher, env config.Env) (map[string]sandbox.Report, error) {
	out := make(map[string]sandbox.Report)
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(cfg.Servers)) {
		if len(cfg.Servers[name].Command) == 0 {
			continue
		}
		s, err := cfg.sandbox(name, launcher, env)
		if err = cmp.Or(cfg.checkSandbox(name), err); err != nil {
			errs = append(errs, err)
			continue
		}
		out[name] = s.Holds()
	}
	return out, errors.Join(errs...)
}

func (c *Config) sandbox(name string, launcher sandbox.Launcher, env config.Env) (*sandbox.Sandbox, error) {
	s, err := sandbox.New(launcher, c.rules(name, env))
	if err != nil {
		return nil, fmt.Errorf("servers.%s.stdio.sandbox: %w", name, err)
	}
	return s, nil
}
