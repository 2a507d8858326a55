package gateway

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream/stdio"
	"github.com/sluice-mesh/sluice/services/internal/config"
	"github.com/sluice-mesh/sluice/services/internal/sandbox"
)

// stdio is what a server's processes are started with, in folders below work where it
// has none of its own.
func (s *Server) stdio(name, work string, env config.Env) stdio.Config {
	return stdio.Config{
		Name: name, Command: s.Command, Env: s.Env, Secrets: s.Secrets, Shared: s.Shared,
		Dir: s.Dir, Remove: s.Remove, Recycle: s.Recycle, Limits: s.Limits, MaxProcesses: s.Processes, Start: s.Start,
		WorkRoot: work, Path: lookUp(env, "PATH"), Home: lookUp(env, "HOME"),
	}
}

func lookUp(env config.Env, name string) string {
	if env == nil {
		return ""
	}
	value, _ := env(name)
	return value
}

// MissingPrograms says of which servers no process could be started on this machine, a
// sentence each: the first call would be the one to find out. What is missing may still
// come, so it is no error.
func (c *Config) MissingPrograms(env config.Env) []string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(c.Servers)) {
		server := c.Servers[name]
		if len(server.Command) == 0 {
			continue
		}
		cfg := server.stdio(name, "", env)
		cfg.Install, _ = server.installation(name, c.programsRoot(), env)
		if err := cfg.Missing(); err != nil {
			out = append(out, fmt.Sprintf("servers.%s can't be started here: %v", name, err))
		}
	}
	return out
}

// warnOfPrograms puts into the log what calls would fail for.
func (s *Service) warnOfPrograms(ctx context.Context) {
	for _, text := range s.cfg.MissingPrograms(s.deps.Env) {
		s.deps.Log.WarnContext(ctx, "a server can't be started; calls to it are refused", "reason", text)
	}
	for _, text := range s.cfg.Installs(s.deps.Env) {
		s.deps.Log.InfoContext(ctx, "a package is not installed as others are", "note", text)
	}
}

// held returns what the kernel holds of a server over stdio now, its limits among it.
func (s *Service) held(name string) sandbox.Report {
	holds, limits := s.holds[name], s.limiter.Report()
	holds.Held = slices.Concat(holds.Held, limits.Held)
	holds.NotHeld = slices.Concat(holds.NotHeld, limits.NotHeld)
	if limits.Why != "" {
		holds.Why = strings.TrimPrefix(holds.Why+"; no cgroups: "+limits.Why, "; ")
	}
	return holds
}
