package gateway

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/sluice-mesh/sluice/services/gateway/internal/programs"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/config"
	"github.com/sluice-mesh/sluice/services/internal/sandbox"
)

// serversFolder is the directory in the gateway's data that contains a directory for each server.
const serversFolder = "servers"

// Sandbox configures the sandbox of a stdio server, in addition to the protection of the mesh's own files.
type Sandbox struct {
	// Mode specifies which parts of the sandbox must be enforced.
	Mode sandbox.Mode
	// Read and Write are absolute paths that the sandbox would hide by default. The server may read the paths in Read, and
	// read and write the paths in Write.
	Read, Write []string
	// Home are paths relative to the HOME of the gateway's user. The server may read these paths. If the list is not
	// empty, the rest of that HOME is hidden from the server.
	Home []string
	// NoNetwork is true if the server may not access the network.
	NoNetwork bool
}

func sandboxFrom(f *config.File, s *config.StdioSandbox) Sandbox {
	out := Sandbox{Home: s.Home, NoNetwork: s.Network != nil && !*s.Network}
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

func absolute(path string) string {
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}
	return path
}

// programFiles returns the files and directories on this machine that belong to each stdio server's program. The key is
// the server's name, or empty for the system's files and the programs that print secrets.
func (c *Config) programFiles(env config.Env) map[string][]string {
	out := map[string][]string{"": append(programs.System(), c.SecretPrograms...)}
	for name, s := range c.Servers {
		if len(s.Command) == 0 {
			continue
		}
		cfg := s.stdio(name, c.workRoot(), env)
		path, vars, err := cfg.Program()
		if err != nil {
			continue // a missing program has no files to protect, and the error is reported when the server is started
		}
		out[name] = programs.Files(&programs.Command{Program: path, Args: s.Command[1:], Env: vars, Dir: cfg.Dir, Home: cfg.Home})
	}
	return out
}

// rules returns the sandbox rules for a stdio server. files is the result of programFiles, or nil if the rules are only
// validated.
func (c *Config) rules(name string, env config.Env, files map[string][]string) sandbox.Rules {
	s := c.Servers[name].Sandbox
	r := sandbox.Rules{
		Mode: s.Mode, Secret: append([]string{absolute(c.Data)}, c.Secrets...), Private: append([]string{c.workRoot()}, c.Documents...),
		Programs: ownPrograms(), Read: s.Read, Write: s.Write, NoNetwork: s.NoNetwork,
	}
	if env != nil {
		r.Home, _ = env("HOME")
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		r.ReadOnly = append(r.ReadOnly, files[name]...)
	}
	slices.Sort(r.ReadOnly)
	r.ReadOnly = slices.Compact(r.ReadOnly)
	r.Work = []string{"/tmp", "/var/tmp", "/dev/shm"}
	for _, path := range []string{c.Servers[name].Dir, r.Home} {
		if path != "" {
			r.Work = append(r.Work, absolute(path))
		}
	}
	return r
}

func (c *Config) workRoot() string { return absolute(filepath.Join(c.Data, "gateway", serversFolder)) }

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

// checkSandbox returns an error if a server's configuration allows access to a path that no server may reach.
func (c *Config) checkSandbox(name string) error {
	s := c.Servers[name]
	if len(s.Command) == 0 || s.Sandbox.Mode == sandbox.Off {
		return nil
	}
	rules := c.rules(name, nil, nil)
	if err := rules.Check(); err != nil {
		return fmt.Errorf("servers.%s.stdio.sandbox.%w", name, err)
	}
	if s.Dir != "" {
		if err := rules.CheckAccess(absolute(s.Dir)); err != nil {
			return fmt.Errorf("servers.%s.stdio.dir: %w", name, err)
		}
	}
	return nil
}

// SandboxReports returns the restrictions that this system would enforce for each stdio server, by name. The error
// names the servers that would not be started.
func SandboxReports(cfg Config, launcher sandbox.Launcher, env config.Env) (map[string]sandbox.Report, error) {
	out := make(map[string]sandbox.Report)
	var errs []error
	files := cfg.programFiles(env)
	for _, name := range slices.Sorted(maps.Keys(cfg.Servers)) {
		if len(cfg.Servers[name].Command) == 0 {
			continue
		}
		_, report, err := cfg.sandbox(name, launcher, env, files)
		if err = cmp.Or(cfg.checkSandbox(name), err); err != nil {
			errs = append(errs, err)
			continue
		}
		out[name] = report
	}
	return out, errors.Join(errs...)
}

// sandbox returns the sandbox of a server, and a report of the restrictions that the kernel enforces.
func (c *Config) sandbox(name string, launcher sandbox.Launcher, env config.Env, files map[string][]string) (*sandbox.Sandbox, sandbox.Report, error) {
	rules := c.rules(name, env, files)
	rules.Private = append(rules.Private, c.programsRoot()) // checkSandbox refuses every configuration that allows access to this directory
	if err := c.limitHome(name, &rules, files); err != nil {
		return nil, sandbox.Report{}, fmt.Errorf("servers.%s.stdio.sandbox.home: %w", name, err)
	}
	s, err := sandbox.New(launcher, rules)
	if err != nil {
		return nil, sandbox.Report{}, fmt.Errorf("servers.%s.stdio.sandbox: %w", name, err)
	}
	report := s.Report()
	report.Opened = c.sandboxExceptions(name, files)
	return s, report, nil
}

// sandboxExceptions returns a sentence for each program that the server may modify because the server's configuration
// makes the program's files writable. It also returns a sentence if the protection of programs makes the server's
// working directory read-only.
func (c *Config) sandboxExceptions(name string, files map[string][]string) []string {
	server := c.Servers[name]
	if server.Sandbox.Mode == sandbox.Off {
		return nil
	}
	var out []string
	for _, written := range server.Sandbox.Write {
		for _, owner := range slices.Sorted(maps.Keys(files)) {
			overlaps := func(path string) bool { return isBelow(path, written) || isBelow(written, path) }
			if owner != "" && slices.ContainsFunc(files[owner], overlaps) {
				out = append(out, fmt.Sprintf("sandbox.write makes %s writable, which belongs to the program of server %s", written, owner))
			}
		}
	}
	return append(out, server.workFolderExceptions(files)...)
}

// workFolderExceptions returns a sentence that describes how the protection of programs affects a working directory
// that sandbox.write does not name. A directory that belongs to a program is read-only. A directory inside a program's
// directory stays writable.
func (s *Server) workFolderExceptions(files map[string][]string) []string {
	dir := absolute(s.Dir)
	if s.Dir == "" || slices.ContainsFunc(s.Sandbox.Write, func(w string) bool { return isBelow(dir, w) }) {
		return nil
	}
	for _, owner := range slices.Sorted(maps.Keys(files)) {
		switch {
		case slices.Contains(files[owner], dir):
			return []string{fmt.Sprintf("its dir %s is read only, because a program is in it: if the server writes there, name folders in sandbox.write", s.Dir)}
		case owner != "" && slices.ContainsFunc(files[owner], func(path string) bool { return isBelow(dir, path) }):
			return []string{fmt.Sprintf("its dir %s is writable and lies in the program of server %s, which it can change there: move one of the two", s.Dir, owner)}
		}
	}
	return nil
}

func isBelow(path, dir string) bool {
	rel, err := filepath.Rel(dir, path)
	return err == nil && (rel == "." || filepath.IsLocal(rel))
}
