// Package servers contains the configured MCP servers: for each server its transport, the MCP revisions that it
// supports, and its lists.
package servers

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/discovery"
	"github.com/sluice-mesh/sluice/services/gateway/internal/limits"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/toolreport"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

const (
	// revisionTimeout is the maximum time for a server to answer whether it supports revision 2026-07-28, and to return
	// its lists in that revision. A client waits during this time.
	revisionTimeout = 10 * time.Second
	// maxPrograms is the maximum number of stdio servers that are started and listed at a time. maxOthers is the
	// maximum number of other servers that are listed at a time. If a server does not respond, it occupies a slot until
	// the timeout, once for each MCP revision in which it has responded before.
	maxPrograms = 4
	maxOthers   = 32
)

// Config describes a server.
type Config struct {
	// Upstream sends requests to the server. It is never nil.
	Upstream *upstream.Server
	// Timeout is the maximum duration of a request. It is greater than 0.
	Timeout time.Duration
	// MaxTimeout is the maximum duration of a request for which the server reports progress. If it is less than
	// Timeout, progress does not extend a request.
	MaxTimeout time.Duration
	// Identity identifies the program or URL that is configured under the server's name. Approvals are bound to it.
	Identity string
	// RecordArguments is true if copies of the arguments of calls are stored.
	RecordArguments bool
	// Host is the client whose own tools this server represents, or "" for an ordinary server. Only that client's hook
	// can use a server with a Host.
	Host string
}

// Deps are the dependencies of a [Server]. Every field is required.
type Deps struct {
	// Memory is the memory budget for the server's lists while they are read.
	Memory    *limits.Budget
	Catalogue *toolreport.Reporter
	// Changed is called when the server's list of tools has changed. It must not block.
	Changed func()
}

// Server is a configured server. It is safe for concurrent use.
type Server struct {
	Config
	faults

	// own is the gateway's own discovery of the server. revisions contains a further discovery for each revision that
	// clients may use.
	own       *discovery.Server
	revisions map[string]*discovery.Server
	// used is the time at which the server was last used, in nanoseconds of Unix time.
	used atomic.Int64
}

// New returns a server with the given configured name. The server has not been discovered yet. New returns an error if
// cfg.Upstream is nil.
func New(name string, cfg Config, deps Deps) (*Server, error) {
	if cfg.Upstream == nil {
		return nil, errors.New("servers: a server needs an upstream")
	}
	s := &Server{Config: cfg, revisions: make(map[string]*discovery.Server)}
	view := discovery.Config{Name: name, Timeout: cfg.Timeout}
	with := discovery.Deps{Server: cfg.Upstream, Room: deps.Memory, Catalogue: deps.Catalogue, Changed: deps.Changed}
	var err error
	if s.own, err = discovery.New(view, with); err != nil {
		return nil, err
	}
	versions := mcp.Supported()
	if cfg.Upstream.CanBeModern() {
		versions = append(versions, mcp.Modern)
	}
	for _, view.Version = range versions {
		if view.Version == mcp.Modern {
			view.Timeout = min(view.Timeout, revisionTimeout)
		}
		if s.revisions[view.Version], err = discovery.New(view, with); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// Own returns the gateway's own discovery of the server. The discovery uses the newest revision with sessions that the
// server supports. If the server supports no revision with sessions, the discovery uses revision 2026-07-28.
func (s *Server) Own() *discovery.Server { return s.own }

// Revision returns the gateway's own discovery of the server in the given MCP revision, or nil if the server's
// transport does not support that revision.
func (s *Server) Revision(version string) *discovery.Server { return s.revisions[version] }

// Discovery returns the gateway's own discovery of the server for messages of revision 2026-07-28. If the server is
// known to support that revision, the discovery is in that revision. Otherwise Discovery returns the result of
// [Server.Own].
func (s *Server) Discovery() *discovery.Server {
	if speaks, _ := s.Stateless(); speaks {
		return s.revisions[mcp.Modern]
	}
	return s.own
}

// IsProgram reports whether the server is a stdio server, which the gateway starts.
func (s *Server) IsProgram() bool { return s.Upstream.Transport() == "stdio" }

// Touch records that the server is used now.
func (s *Server) Touch() { s.used.Store(time.Now().UnixNano()) }

// isIdle reports whether the server is a stdio server that has not been used since its last listing.
func (s *Server) isIdle() bool {
	found := s.own.Last()
	return found != nil && s.IsProgram() && time.Unix(0, s.used.Load()).Before(found.At)
}

// Discover lists the tools of every server for the catalog, and repeats this on a schedule until ctx is done. A stdio
// server is listed again only if it was used after its last listing. A server is listed only in those revisions in
// which it has been used. While hasPolicy returns false, no server is listed, because its list could not be reported.
func Discover(ctx context.Context, all map[string]*Server, hasPolicy func() bool) {
	programs, others := make(chan struct{}, maxPrograms), make(chan struct{}, maxOthers)
	var running sync.WaitGroup
	defer running.Wait()
	for _, s := range all {
		slots := others
		if s.IsProgram() {
			slots = programs
		}
		idle := func() bool { return !hasPolicy() || s.isIdle() }
		running.Go(func() { s.own.KeepFresh(ctx, slots, idle, slices.Collect(maps.Values(s.revisions))...) })
	}
}
