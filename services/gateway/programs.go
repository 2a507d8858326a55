package gateway

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream/stdio"
	"github.com/sluice-mesh/sluice/services/internal/config"
	"github.com/sluice-mesh/sluice/services/internal/sandbox"
)

// stdio returns the configuration of a server's processes. Each process has a private directory below work, unless the
// server has a configured working directory.
func (s *Server) stdio(name, work string, env config.Env) stdio.Config {
	return stdio.Config{
		Name: name, Command: s.Command, Env: s.Env, Secrets: s.Secrets, Shared: s.Shared,
		Dir: s.Dir, Remove: s.Remove, Recycle: s.Recycle, Limits: s.Limits, MaxProcesses: s.Processes, Start: s.Start,
		HomeEntries: s.Sandbox.Home, WorkRoot: work, Path: lookUp(env, "PATH"), Home: lookUp(env, "HOME"),
	}
}

// sweepUnused removes the installed packages that no configured server uses. It also renames the private directories
// that no configured server has used for 30 days. Then removeEndedFolders removes these directories.
func (s *Service) sweepUnused(ctx context.Context) {
	s.sweepPrograms(ctx)
	s.endUnusedFolders(ctx)
}

// endUnusedFolders renames the private directories that no configured server has used for 30 days.
func (s *Service) endUnusedFolders(ctx context.Context) {
	used := func(name string) bool {
		server, ok := s.cfg.Servers[name]
		return ok && len(server.Command) > 0 && server.Dir == ""
	}
	if err := stdio.WorkRoot(s.cfg.workRoot()).EndUnused(ctx, s.deps.Log, used, time.Now()); err != nil {
		s.deps.Log.WarnContext(ctx, "private folders that no server uses can't be removed; the next start of the gateway tries again", "error", err)
	}
}

// removeEndedFolders removes the directories that endUnusedFolders renamed, including those that an earlier process
// renamed.
func (s *Service) removeEndedFolders(ctx context.Context) {
	if err := stdio.WorkRoot(s.cfg.workRoot()).RemoveEnded(ctx, s.deps.Log); err != nil && ctx.Err() == nil {
		s.deps.Log.WarnContext(ctx, "private folders that no server uses can't be removed; the next start of the gateway tries again", "error", err)
	}
}

func lookUp(env config.Env, name string) string {
	if env == nil {
		return ""
	}
	value, _ := env(name)
	return value
}

// MissingPrograms returns a sentence for each server whose process cannot be started on this machine. Without these
// sentences, an operator would notice the problem only when a call fails. A missing program is not an error, because it
// may be installed later.
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

// warnOfPrograms logs the servers that cannot be started on this machine, and the servers whose packages are installed
// in a way that might surprise an operator.
func (s *Service) warnOfPrograms(ctx context.Context) {
	for _, text := range s.cfg.MissingPrograms(s.deps.Env) {
		s.deps.Log.WarnContext(ctx, "a server can't be started; calls to it are refused", "reason", text)
	}
	for _, text := range s.cfg.InstallationNotes(s.deps.Env) {
		s.deps.Log.InfoContext(ctx, "the package of a server is installed in an unusual way", "note", text)
	}
}

// sandboxReport returns a report of the restrictions that the kernel enforces for a stdio server, including the limits
// of its processes.
func (s *Service) sandboxReport(name string) sandbox.Report {
	report, limits := s.sandboxReports[name], s.limiter.Report()
	report.Enforced = slices.Concat(report.Enforced, limits.Enforced)
	report.NotEnforced = slices.Concat(report.NotEnforced, limits.NotEnforced)
	if limits.Why != "" {
		report.Why = strings.TrimPrefix(report.Why+"; no cgroups: "+limits.Why, "; ")
	}
	return report
}
