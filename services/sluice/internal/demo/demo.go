// Package demo is a small MCP server for trying out the mesh. It stores notes and a few accounts in memory, and has
// tools in every category from harmless to costly. The tools change this data, so the effect of a refusal is visible.
// The server counts every tool call that it receives. With this count, a test can check that a refused call did not
// reach the server.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// These are the defaults and bounds of [Config].
const (
	// DefaultMaxNotes is the default of [Config.MaxNotes].
	DefaultMaxNotes = 10_000
	// DefaultSessionIdle is the default of [Config.SessionIdle].
	DefaultSessionIdle = 30 * time.Minute

	maxNotesLimit = 100_000
)

// Config configures a demo server. The zero value is not valid. [DefaultConfig] returns a valid Config.
type Config struct {
	// MaxNotes is the maximum number of notes at the same time, including the three initial notes. It must be between 3
	// and 100,000.
	MaxNotes int
	// SessionIdle is how long an HTTP session can be without requests before it ends. It must be greater than 0. It has no
	// effect if Stateless is set.
	SessionIdle time.Duration
	// Stateless is true if the server has no HTTP sessions. Such a server neither issues nor requires an Mcp-Session-Id.
	// Only a stateless server supports MCP revision 2026-07-28. If Stateless is false, a session starts with `initialize`.
	// A request in revision 2026-07-28 then gets the error −32022 with the supported revisions.
	Stateless bool
	// JSONResponse makes the server respond to a POST with one application/json body instead of an event stream. If
	// JSONResponse is true, a client receives progress notifications only if it has opened the session's GET stream.
	JSONResponse bool
}

// DefaultConfig returns the configuration of a server that uses sessions and responds with event streams.
func DefaultConfig() Config {
	return Config{MaxNotes: DefaultMaxNotes, SessionIdle: DefaultSessionIdle}
}

// Validate returns all errors of c, or nil.
func (c *Config) Validate() error {
	var errs []error
	if c.MaxNotes < len(startingNotes) || c.MaxNotes > maxNotesLimit {
		errs = append(errs, fmt.Errorf("MaxNotes is %d: choose %d to %d", c.MaxNotes, len(startingNotes), maxNotesLimit))
	}
	if c.SessionIdle <= 0 && !c.Stateless {
		errs = append(errs, fmt.Errorf("SessionIdle is %s: choose a duration above 0", c.SessionIdle))
	}
	return errors.Join(errs...)
}

// Deps contains the dependencies of a demo server. All fields are required.
type Deps struct {
	// Log receives one line for each tool call. With stdio, it must not write to standard output.
	Log *slog.Logger
}

// Server is a demo server. All connections share its state, which is lost when the process exits. Its methods are safe
// for concurrent use.
type Server struct {
	cfg    Config
	mcp    *mcp.Server
	book   *noteBook
	ledger *ledger
	calls  *recorder
}

// New creates a server with three notes and three accounts. It returns an error if cfg is not valid or a dependency is
// missing.
func New(cfg Config, deps Deps) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("configure the demo server: %w", err)
	}
	if deps.Log == nil {
		return nil, errors.New("configure the demo server: Deps.Log is nil: pass a logger")
	}
	s := &Server{cfg: cfg, book: newBook(cfg.MaxNotes), ledger: newLedger(), calls: newRecorder(deps.Log)}
	s.mcp = mcp.NewServer(
		&mcp.Implementation{Name: "sluice-demo", Title: "Sluice demo", Version: "1.0.0"},
		&mcp.ServerOptions{
			Instructions: "Notes and small accounts in memory, to try a policy on. A restart forgets every change.",
			Capabilities: &mcp.ServerCapabilities{Tools: &mcp.ToolCapabilities{}},
		})
	s.mcp.AddReceivingMiddleware(s.calls.middleware)
	s.addTools()
	return s, nil
}

// Handler returns a handler that serves the MCP endpoint (Streamable HTTP) at /mcp, "ok" at GET /healthz, and [Stats]
// as JSON at GET /stats. The handler does not authenticate callers, which is the gateway's task.
//
// The handler responds with 403 to a request to a loopback address with a Host that is not loopback (DNS rebinding). It
// also responds with 403 to a POST that a browser sends for another site. Each handler has separate sessions. All
// handlers share the server's state and statistics.
func (s *Server) Handler() http.Handler {
	endpoint := mcp.NewStreamableHTTPHandler(
		func(*http.Request) *mcp.Server { return s.mcp },
		&mcp.StreamableHTTPOptions{
			Stateless:      s.cfg.Stateless,
			JSONResponse:   s.cfg.JSONResponse,
			SessionTimeout: s.cfg.SessionIdle,
		})
	mux := http.NewServeMux()
	mux.Handle("/mcp", s.calls.countPosts(endpoint))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "ok\n") // an error means that the peer has disconnected
	})
	mux.HandleFunc("GET /stats", s.calls.serveStats)
	return http.NewCrossOriginProtection().Handler(mux)
}

// ServeStdio serves one connection until the input ends or ctx is done, and then returns nil. Each line is a JSON-RPC
// message of at most 16 MiB. ServeStdio returns an error after a line that is not JSON-RPC. It closes the input and the
// output.
func (s *Server) ServeStdio(ctx context.Context, in io.ReadCloser, out io.WriteCloser) error {
	err := s.mcp.Run(ctx, &mcp.IOTransport{Reader: in, Writer: out})
	if err != nil && ctx.Err() == nil {
		return fmt.Errorf("serve stdio: %w", err)
	}
	return nil
}

// Stats returns the numbers of requests since the server was created. The caller owns the result.
func (s *Server) Stats() Stats {
	return s.calls.stats()
}
