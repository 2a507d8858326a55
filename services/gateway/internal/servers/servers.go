// Package servers contains the configured MCP servers. For each server, it contains the connection, the MCP revisions
// that the server supports, and the server's lists.
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
	// revisionTimeout limits how long a server may take to answer whether it supports revision 2026-07-28, and to return
	// its lists in that revision. The timeout is short because a client waits for the answer.
	revisionTimeout = 10 * time.Second
	// maxPrograms limits how many stdio servers are started at the same time to list their tools. maxOthers limits how
	// many other servers are queried at the same time. A server that does not respond occupies a slot until the timeout
	// expires, once for each MCP revision in which it has responded before.
	maxPrograms = 4
	maxOthers   = 32
)

// Config describes a server.
type Config struct {
	// Upstream sends requests to the server. It is never nil.
	Upstream *upstream.Server
	// Timeout limits how long a request may take. It must be greater than 0.
	Timeout time.Duration
	// MaxTimeout limits how long a request may take if the server reports progress. If it is less than Timeout,
	// progress does not extend a request.
	MaxTimeout time.Duration
	// Identity identifies the program or URL that is configured under the server's name. Approvals are valid only for
	// this identity.
	Identity string
	// RecordArguments is true if the gateway must store copies of the arguments of calls.
	RecordArguments bool
	// ForEachPerson is true if each person uses a separate account of the server.
	ForEachPerson bool
	// Host is the client whose own tools this server represents, or "" for an ordinary server. Only the hook of that
	// client can use such a server.
	Host string
}

// Deps are the dependencies of a [Server]. Every field is required.
type Deps struct {
	// Memory is the memory budget for the server's lists while the gateway reads them.
	Memory    *limits.Budget
	Catalogue *toolreport.Reporter
	// Changed is called when the server's list of tools has changed. It must not block.
	Changed func()
}

// Server is a configured server. It is safe for concurrent use.
type Server struct {
	Config
	faults

	// own queries the server in the revision that the gateway has chosen. revisions contains a further discovery for each
	// revision that clients may use.
	own       *discovery.Server
	revisions map[string]*discovery.Server
	// used is when the server was last used, as Unix time in nanoseconds.
	used atomic.Int64
}

// New returns a server with the given configured name. It does not send requests to the server. New returns an error if
// cfg.Upstream is nil or a dependency is missing.
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

// Own returns the gateway's own discovery of the server. It uses the newest revision with sessions that the server
// supports, or revision 2026-07-28 if the server supports no revision with sessions.
func (s *Server) Own() *discovery.Server { return s.own }

// Revision returns the gateway's own discovery of the server in the given MCP revision. It returns nil if the server's
// transport does not support that revision.
func (s *Server) Revision(version string) *discovery.Server { return s.revisions[version] }

// Discovery returns the gateway's own discovery of the server for messages of revision 2026-07-28. If the server is
// known to support that revision, the discovery uses it. Otherwise Discovery returns the same discovery as
// [Server.Own].
func (s *Server) Discovery() *discovery.Server {
	if speaks, _ := s.Stateless(); speaks {
		return s.revisions[mcp.Modern]
	}
	return s.own
}

// IsProgram reports whether the server is a stdio server, which is a program that the gateway starts.
func (s *Server) IsProgram() bool { return s.Upstream.Transport() == "stdio" }

// Touch records that the server is being used now.
func (s *Server) Touch() { s.used.Store(time.Now().UnixNano()) }

// isIdle reports whether the server is a stdio server that has not been used since its tools were last listed.
func (s *Server) isIdle() bool {
	found := s.own.Last()
	return found != nil && s.IsProgram() && time.Unix(0, s.used.Load()).Before(found.At)
}

// Discover lists the tools of every server for the catalog, and repeats this on a schedule until ctx is done. It lists
// a stdio server again only if the server was used after it was last listed. It lists a server only in the revisions
// that clients have used with the server. While hasPolicy() returns false, it lists no server, because the lists could
// not be reported.
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
