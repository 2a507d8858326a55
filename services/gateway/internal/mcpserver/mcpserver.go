// Package mcpserver serves MCP over Streamable HTTP, in the revisions that use sessions (2024-11-05 to 2025-11-25) and
// in the stateless revision 2026-07-28. It authenticates callers, and parses and routes their messages. Package
// pipeline determines which calls are executed.
package mcpserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/broadcast"
	"github.com/sluice-mesh/sluice/services/gateway/internal/dispatch"
	"github.com/sluice-mesh/sluice/services/gateway/internal/forms"
	"github.com/sluice-mesh/sluice/services/gateway/internal/httpserver"
	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/limits"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/meters"
	"github.com/sluice-mesh/sluice/services/gateway/internal/pipeline"
	"github.com/sluice-mesh/sluice/services/gateway/internal/protocol"
	v2025 "github.com/sluice-mesh/sluice/services/gateway/internal/protocol/v2025"
	v2026 "github.com/sluice-mesh/sluice/services/gateway/internal/protocol/v2026"
	"github.com/sluice-mesh/sluice/services/gateway/internal/servers"
	"github.com/sluice-mesh/sluice/services/gateway/internal/session"
	"github.com/sluice-mesh/sluice/services/gateway/internal/toolreport"
	"github.com/sluice-mesh/sluice/services/gateway/internal/visibility"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/lru"
)

// Config configures a [Server].
type Config struct {
	HTTP httpserver.Config
	// Version is the version of this build, which is sent to clients.
	Version string
	// TrustParent makes the gateway continue a client's trace. Otherwise the gateway starts a new trace that only links
	// to the client's trace.
	TrustParent bool
}

// Deps are the dependencies of a [Server]. Every field is required.
type Deps struct {
	Tokens *authn.Tokens
	Policy policyv1.PolicyServiceClient
	// Revision returns the revision of the active policy, or "" if it is not known.
	Revision func() string
	// Scopes returns the OAuth scopes that policy rules require for calls to a server, or those for all servers
	// together if the name is empty. It returns nil if the scopes are not known.
	Scopes   func(server string) []string
	Pipeline *pipeline.Pipeline
	Sessions *session.Store
	Servers  map[string]servers.Config
	// Catalogue receives the tool lists of servers.
	Catalogue *toolreport.Reporter
	// AnswerMemory is the memory budget for answers that clients have not read yet.
	AnswerMemory *limits.Budget
	// Forms stores which clients answer the forms that the gateway sends.
	Forms *forms.Memory
	// Secret is a secret of this gateway that does not change when the gateway restarts.
	Secret []byte
	// Admission is called to count a request that was refused before its caller was authenticated.
	Admission func(code, peer string)
	// Ready returns the reasons why the gateway is not ready, or nil if it is ready. Degraded returns sentences about
	// unavailable services. It may return some even if the gateway is ready.
	Ready, Degraded func() []string

	Tracer     trace.Tracer
	Meters     *meters.Meters
	Propagator propagation.TextMapPropagator
	Log        *slog.Logger
}

// Server serves MCP. It is safe for concurrent use.
type Server struct {
	*protocol.Router

	deps    Deps
	http    *httpserver.Server
	servers map[string]*servers.Server
	// sessionIDs caches the ids of the sessions in which mesh services make calls on behalf of principals.
	sessionIDs *lru.Cache[session.Key, string]
	hooks      *hookMemories
}

// New returns a server, or an error if a dependency is missing.
func New(cfg Config, deps Deps) (*Server, error) {
	if deps.Tokens == nil || deps.Policy == nil || deps.Revision == nil || deps.Pipeline == nil || deps.Sessions == nil || deps.Servers == nil || deps.Catalogue == nil || deps.AnswerMemory == nil || deps.Forms == nil || len(deps.Secret) == 0 ||
		deps.Admission == nil || deps.Ready == nil || deps.Degraded == nil || deps.Tracer == nil || deps.Meters == nil || deps.Propagator == nil || deps.Log == nil {
		return nil, errors.New("mcpserver: every dependency is required")
	}
	bodies, err := limits.NewBudget(limits.BodyQuotas())
	if err != nil {
		return nil, err
	}
	inFlight, err := limits.NewRequests(bodies, deps.AnswerMemory)
	if err != nil {
		return nil, err
	}
	configured, changes := make(map[string]*servers.Server, len(deps.Servers)), new(broadcast.Broadcaster)
	reachable, hosts := make(map[string]*servers.Server, len(deps.Servers)), make(map[string]*servers.Server)
	for name, server := range deps.Servers {
		with := servers.Deps{Memory: deps.AnswerMemory, Catalogue: deps.Catalogue, Changed: changes.Notify}
		if configured[name], err = servers.New(name, server, with); err != nil {
			return nil, fmt.Errorf("server %s: %w", name, err)
		}
		if server.Host != "" {
			hosts[name] = configured[name]
		} else {
			reachable[name] = configured[name]
		}
	}
	remembered, err := session.ReplayRoom()
	if err != nil {
		return nil, err
	}
	visible, err := visibility.New(visibility.Deps{Policy: deps.Policy, Revision: deps.Revision, Log: deps.Log})
	if err != nil {
		return nil, err
	}
	modern, err := v2026.New(deps.Secret)
	if err != nil {
		return nil, err
	}
	parse := jsonrpc.DefaultLimits()
	f := &protocol.Router{Deps: protocol.Deps{
		Pipeline: deps.Pipeline, Sessions: deps.Sessions, Visibility: visible, Servers: reachable, Hosts: hosts, InFlight: inFlight, Changes: changes, Limits: parse,
		TrustParent: cfg.TrustParent, Tracer: deps.Tracer, Propagator: deps.Propagator, Log: deps.Log,
		Sessionful: func(x *protocol.Request) protocol.Handler { return v2025.New(x) },
		Stateless:  modern.Handler,
	}}
	modern.Attach(f)
	f.Dispatcher, err = dispatch.New(dispatch.Deps{
		Pipeline: deps.Pipeline, Sessions: deps.Sessions, Visibility: visible, Catalogue: deps.Catalogue, Remembered: remembered, Forms: deps.Forms,
		Limits: parse, Version: cfg.Version, Panicked: f.LogPanic,
		Tracer: deps.Tracer, Meters: deps.Meters, Propagator: deps.Propagator, Log: deps.Log,
	})
	if err != nil {
		return nil, err
	}
	e := &Server{Router: f, deps: deps, servers: configured, sessionIDs: newSessionIDs(), hooks: newHookMemories()}
	e.http, err = httpserver.New(cfg.HTTP, httpserver.Deps{
		Tokens: deps.Tokens, Scopes: scopesOf(deps.Scopes, reachable), Admission: deps.Admission, Panicked: f.LogPanic, Meters: deps.Meters, Log: deps.Log,
	})
	return e, err
}

// scopesOf returns a function that returns the scopes of a server. If clients cannot send messages to a server with
// this name, for example because it does not exist, the function returns the scopes of all servers.
func scopesOf(scopes func(server string) []string, reachable map[string]*servers.Server) func(server string) []string {
	return func(server string) []string {
		if reachable[server] == nil {
			server = ""
		}
		return scopes(server)
	}
}

// Discover lists the tools of every server for the catalog. It repeats this on a schedule until ctx is done.
func (s *Server) Discover(ctx context.Context) error {
	servers.Discover(ctx, s.servers, func() bool { return s.deps.Revision() != "" })
	return nil
}

// Versions returns the revisions that a server is known to support, with the newest first, or nil if none is known.
func (s *Server) Versions(server string) []string {
	if found, ok := s.servers[server]; ok {
		return found.Versions()
	}
	return nil
}

// Faults returns the known reasons why elements are omitted from a server's lists. If no server has this name, it
// returns nil.
func (s *Server) Faults(server string) []*gatewayv1.ListFault {
	if found, ok := s.servers[server]; ok {
		return found.Faults()
	}
	return nil
}

// Handler returns the HTTP handler for all paths.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", s.health)
	mux.HandleFunc("GET /readyz", s.ready)
	// These patterns match the URL for all servers and the URLs for one server.
	for _, at := range []string{"/mcp", "/mcp/{$}", "/mcp/{server}", "/mcp/{server}/{$}"} {
		mux.HandleFunc("POST "+at, s.authenticated(s.post))
		mux.HandleFunc("DELETE "+at, s.authenticated(s.end))
		mux.HandleFunc("GET "+at, s.authenticated(s.listen))
		mux.HandleFunc(at, s.notAllowed)
	}
	mux.HandleFunc("POST /hook/{client}", s.authenticated(s.hook))
	for _, at := range httpserver.MetadataPatterns() {
		mux.HandleFunc("GET "+at, s.http.ResourceMetadata)
	}
	for _, at := range []string{"/healthz", "/readyz"} {
		mux.HandleFunc(at, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Allow", "GET, HEAD")
			writeText(w, http.StatusMethodNotAllowed, "Method Not Allowed\n")
		})
	}
	mux.HandleFunc("/", notFound)
	return s.http.Guard(mux)
}

// notFound answers a request for an unknown path with a text about the paths that exist. The text contains no server's
// name, because the caller is not authenticated.
func notFound(w http.ResponseWriter, _ *http.Request) {
	writeText(w, http.StatusNotFound, "there is nothing at this path; send MCP messages to /mcp/NAME for the configured server NAME, "+
		"or to /mcp for all servers; /healthz and /readyz report the gateway's state\n")
}

func (*Server) health(w http.ResponseWriter, _ *http.Request) { writeText(w, http.StatusOK, "ok\n") }

// ready responds with a text that says whether the gateway accepts calls, and which services are unavailable.
func (s *Server) ready(w http.ResponseWriter, _ *http.Request) {
	status, text := http.StatusOK, "ready\n"
	if why := s.deps.Ready(); len(why) > 0 {
		status, text = http.StatusServiceUnavailable, "not ready\n"+strings.Join(why, "\n")+"\n"
	}
	if why := s.deps.Degraded(); len(why) > 0 {
		text += "degraded\n" + strings.Join(why, "\n") + "\n"
	}
	writeText(w, status, text)
}

// notAllowed refuses an unsupported HTTP method. It also refuses GET for revisions in which GET opens no stream.
func (*Server) notAllowed(w http.ResponseWriter, r *http.Request) {
	allow, how := "POST, GET, DELETE", "use POST to send a message, GET to receive a server's messages in a session, DELETE to end a session\n"
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		allow, how = "POST, DELETE", "there is no stream here; use POST to send a message, DELETE to end a session\n"
	}
	w.Header().Set("Allow", allow)
	writeText(w, http.StatusMethodNotAllowed, how)
}

func (s *Server) end(w http.ResponseWriter, r *http.Request, c httpserver.Caller) {
	id, ok := protocol.SingleHeader(r.Header, mcp.HeaderSession)
	if !ok || s.Sessions.End(id, protocol.SessionKey(c, r.PathValue("server"))) != nil {
		s.refuseHTTP(w, r, c, protocol.UnknownSession())
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func writeText(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(text)) // the client may have disconnected
}
