// Package gateway serves MCP to clients, and sluice.gateway.v1 to operators and agents. The policy service evaluates
// each request, and the gateway sends the allowed requests to the servers.
package gateway

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	ratelimitv1 "github.com/sluice-mesh/sluice/gen/sluice/ratelimit/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/approvals"
	"github.com/sluice-mesh/sluice/services/gateway/internal/arguments"
	"github.com/sluice-mesh/sluice/services/gateway/internal/attempt"
	"github.com/sluice-mesh/sluice/services/gateway/internal/decisioncache"
	"github.com/sluice-mesh/sluice/services/gateway/internal/forms"
	"github.com/sluice-mesh/sluice/services/gateway/internal/httpserver"
	"github.com/sluice-mesh/sluice/services/gateway/internal/limits"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcpserver"
	"github.com/sluice-mesh/sluice/services/gateway/internal/meters"
	"github.com/sluice-mesh/sluice/services/gateway/internal/pipeline"
	"github.com/sluice-mesh/sluice/services/gateway/internal/servers"
	"github.com/sluice-mesh/sluice/services/gateway/internal/session"
	"github.com/sluice-mesh/sluice/services/gateway/internal/toolreport"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream/stdio"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/config"
	"github.com/sluice-mesh/sluice/services/internal/datadir"
	"github.com/sluice-mesh/sluice/services/internal/fairqueue"
	"github.com/sluice-mesh/sluice/services/internal/journal"
	"github.com/sluice-mesh/sluice/services/internal/pki"
	"github.com/sluice-mesh/sluice/services/internal/proclimit"
	"github.com/sluice-mesh/sluice/services/internal/sandbox"
)

const (
	// drainTimeout is how long the gateway waits for requests in flight when it stops. After cutTimeout, it cancels the
	// calls that are still in flight. The remaining time is enough to record the outcomes of these calls and to respond to
	// the callers.
	drainTimeout = 30 * time.Second
	cutTimeout   = 25 * time.Second
)

// Deps are the dependencies of a [Service]. All except Env, Launcher and Wrap are required.
type Deps struct {
	// Tokens authenticates callers.
	Tokens *authn.Tokens
	// Policy evaluates calls.
	Policy policyv1.PolicyServiceClient
	// Catalogue is the catalog service, which receives the tool lists of servers.
	Catalogue policyv1.CatalogServiceClient
	// RateLimit is the ratelimit service, which counts calls against their rate limits.
	RateLimit ratelimitv1.RateLimitServiceClient
	// Approval is the approval service, which stores the calls that wait for approvers.
	Approval approvalv1.ApprovalServiceClient
	// Connections is the service that stores the access tokens for servers.
	Connections identityv1.ConnectionServiceClient
	// Agents is a connection to the wasmagent service. If the target of a server is that service, the service's methods
	// are the server's tools. Calls on the connection are made on behalf of the principal in the context (see
	// [authn.OnBehalfOf]).
	Agents grpc.ClientConnInterface
	// Peers contains the health clients of other mesh services that some calls need, by service name. It does not contain
	// the policy service, because the policy lease shows whether that service is available.
	Peers map[string]healthv1.HealthClient
	// Meter creates the instruments for metrics.
	Meter metric.Meter
	// Tracer creates spans, and Propagator extracts the trace contexts that clients send.
	Tracer     trace.Tracer
	Propagator propagation.TextMapPropagator
	// Log receives messages for operators.
	Log *slog.Logger
	// Env looks up PATH and HOME for the programs that the gateway starts. If Env is nil, neither variable is set.
	Env config.Env
	// Launcher starts this program as the launcher of sandboxed stdio servers. If it is not set, servers are started only
	// if their sandbox is switched off.
	Launcher sandbox.Launcher
	// Wrap wraps the listener for clients, so that connections can be observed. It may be nil.
	Wrap func(net.Listener) net.Listener
}

// Service is the gateway. It implements gatewayv1.GatewayServiceServer.
type Service struct {
	gatewayv1.UnimplementedGatewayServiceServer

	cfg            Config
	deps           Deps
	meters         *meters.Meters
	dir            *datadir.Dir
	journal        *journal.Journal
	arguments      *arguments.Store
	sessions       *session.Store
	servers        map[string]*upstream.Server
	answerMemory   *limits.Budget
	sandboxReports map[string]sandbox.Report
	limiter        *proclimit.Limiter
	installs       stdio.Installs
	openCalls      []approvals.OpenCall
	pipeline       *pipeline.Pipeline
	mcp            *mcpserver.Server
	forms          *forms.Memory
	lis            net.Listener
	cert           *pki.Source[tls.Certificate]
	started        time.Time
	decisions      *decisioncache.Cache
	peers          peerHealth
	// reads limits how many requests of one caller read records at the same time. The limit depends on the number of
	// processors.
	reads *fairqueue.Queue[string]
	// callCount counts the calls of CallTool and ListTools. The number of a call is the id of its JSON-RPC request.
	callCount atomic.Int64
}

// New opens the data directory, starts listening on the MCP address, and returns the gateway. The gateway serves
// requests only while Run is running.
func New(ctx context.Context, cfg Config, deps Deps) (*Service, error) {
	if deps.Tokens == nil || deps.Policy == nil || deps.Catalogue == nil || deps.RateLimit == nil || deps.Approval == nil || deps.Connections == nil || deps.Agents == nil || deps.Peers == nil || deps.Meter == nil || deps.Tracer == nil || deps.Propagator == nil || deps.Log == nil {
		return nil, errors.New("gateway: every dependency is required")
	}
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	s := &Service{
		cfg: cfg, deps: deps, started: time.Now(), servers: make(map[string]*upstream.Server, len(cfg.Servers)),
		sandboxReports: make(map[string]sandbox.Report), peers: newPeerHealth(deps.Peers), reads: fairqueue.NewForProcessor[string](),
	}
	if err := s.open(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// open opens everything that the gateway needs. If open fails, Close closes everything that was already opened.
func (s *Service) open(ctx context.Context) (err error) {
	if s.meters, err = meters.New(s.deps.Meter); err != nil {
		return err
	}
	s.deps.Tokens.CountVerifications(s.meters.CountVerified)
	if s.answerMemory, err = limits.NewBudget(limits.AnswerQuotas()); err != nil {
		return err
	}
	if s.dir, err = datadir.Open(s.cfg.Data, "gateway"); err != nil {
		return err
	}
	jcfg := journal.DefaultConfig(s.dir.Path("journal"), filepath.Join(s.cfg.Data, "keys", "gateway"))
	jcfg.Sync, jcfg.Build, jcfg.Log = s.cfg.sync(), s.cfg.Version, s.deps.Log
	jcfg.Calls.Bytes, jcfg.Share = s.cfg.JournalBytes, s.cfg.JournalShare
	if s.journal, err = journal.Open(jcfg); err != nil {
		return err
	}
	if s.arguments, err = arguments.Open(s.cfg.arguments(s.dir, s.deps.Log)); err != nil {
		return err
	}
	if s.openCalls, err = approvals.OpenCalls(ctx, s.journal); err != nil {
		return err
	}
	if s.sessions, err = session.NewStore(session.Config{Idle: s.cfg.SessionIdle, MaxPerPrincipal: s.cfg.MaxSessions, Ended: s.recordSession}, s.deps.Log); err != nil {
		return err
	}
	s.sweepUnused(ctx)
	files := s.cfg.programFiles(s.deps.Env)
	for name, server := range s.cfg.Servers {
		connect, err := s.connector(name, server, files)
		if err != nil {
			return err
		}
		over, err := server.transport(connect, s.readKeychain)
		if err != nil {
			return err
		}
		up, err := upstream.New(over, s.meters)
		if err != nil {
			return err
		}
		s.servers[name] = up
	}
	s.logSandboxes(ctx)
	if err := s.newEdge(ctx); err != nil {
		return err
	}
	return s.listen(ctx)
}

func (s *Service) newEdge(ctx context.Context) (err error) {
	holder, err := s.holder()
	if err != nil {
		return err
	}
	cfg := approvals.Config{Hold: s.cfg.Hold, ClientHolds: s.cfg.Clients, MaxPending: s.cfg.MaxPending, Execute: s.cfg.Execute, Holder: holder}
	if s.decisions, err = decisioncache.New(decisioncache.Deps{Policy: s.deps.Policy, Meters: s.meters, Log: s.deps.Log}, !s.cfg.KeepDecisions); err != nil {
		return err
	}
	approvalClient, err := approvals.NewClient(cfg, s.deps.Approval, s.meters, s.deps.Log)
	if err != nil {
		return err
	}
	s.pipeline, err = pipeline.New(pipeline.Deps{
		Policy: s.deps.Policy, Decisions: s.decisions, Limiter: s.deps.RateLimit, Journal: s.journal, Arguments: s.arguments, Approvals: approvalClient, Tracer: s.deps.Tracer, Meters: s.meters, Log: s.deps.Log,
	})
	if err != nil {
		return err
	}
	reporter, err := toolreport.New(s.deps.Catalogue, s.deps.Log)
	if err != nil {
		return err
	}
	targets := make(map[string]servers.Config, len(s.servers))
	for name, up := range s.servers {
		server := s.cfg.Servers[name]
		targets[name] = servers.Config{Upstream: up, Timeout: server.Timeout, MaxTimeout: server.MaxTimeout, Identity: server.identity(), Host: server.Host, RecordArguments: server.RecordArguments, ForEachPerson: server.ForEachPerson}
	}
	s.forms = forms.Open(ctx, s.dir.Path("forms.json"), s.deps.Log)
	s.mcp, err = mcpserver.New(
		mcpserver.Config{HTTP: httpserver.Config{Hosts: s.cfg.Hosts, Origins: s.cfg.Origins, Proxies: s.cfg.Proxies, Resource: s.cfg.Resource, StepUpClients: s.cfg.StepUpClients}, TrustParent: s.cfg.TrustParent, Version: s.cfg.Version},
		mcpserver.Deps{
			Tokens: s.deps.Tokens, Policy: s.deps.Policy, Revision: s.decisions.LeasedRevision, Scopes: s.decisions.NeededScopes, Pipeline: s.pipeline, Sessions: s.sessions, Servers: targets, Catalogue: reporter, AnswerMemory: s.answerMemory, Forms: s.forms, Secret: []byte(s.journal.HMAC([]byte(taskSecretText))),
			Admission: s.journal.Admission, Ready: s.NotReady, Degraded: s.Degraded, Tracer: s.deps.Tracer, Meters: s.meters, Propagator: s.deps.Propagator, Log: s.deps.Log,
		})
	return err
}

// taskSecretText is the text from which the gateway derives the secret for task ids with the journal's key. The journal
// uses the same key for digests of call arguments. The text is not JSON, so it never equals a call's arguments.
const taskSecretText = "what is not JSON: ids of tasks"

// Sandboxes returns a report for each stdio server. The report says which restrictions the kernel enforces. Callers
// must not modify the reports.
func (s *Service) Sandboxes() map[string]sandbox.Report {
	out := make(map[string]sandbox.Report, len(s.sandboxReports))
	for name := range s.sandboxReports {
		out[name] = s.sandboxReport(name)
	}
	return out
}

// logSandboxes logs which restrictions the kernel enforces for stdio servers. It writes one line for all servers with
// the same report. If the kernel does not enforce all restrictions, the line is a warning with advice.
func (s *Service) logSandboxes(ctx context.Context) {
	for _, alike := range sandbox.GroupByReport(s.Sandboxes()) {
		attrs := []any{"servers", strings.Join(alike.Names, ", "), "sandbox", alike.Report.String()}
		if advice := alike.Report.Advice(); advice != "" {
			s.deps.Log.WarnContext(ctx, "the kernel does not enforce the whole sandbox of stdio servers", append(attrs, "do", advice)...)
			continue
		}
		s.deps.Log.InfoContext(ctx, "the kernel enforces the sandbox of stdio servers", attrs...)
	}
}

// InFlight returns the number of requests that wait for a response from each server, by server name. Servers without
// such requests are omitted.
func (s *Service) InFlight() map[string]int {
	out := make(map[string]int)
	for name, up := range s.servers {
		if n := up.InFlight(); n > 0 {
			out[name] = int(n)
		}
	}
	return out
}

// Addr returns the address on which MCP is served.
func (s *Service) Addr() net.Addr { return s.lis.Addr() }

// Register implements rpc.Service.
func (s *Service) Register(r grpc.ServiceRegistrar) { gatewayv1.RegisterGatewayServiceServer(r, s) }

// Health implements rpc.HealthChecker.
func (s *Service) Health(context.Context) error {
	if err := s.journal.Healthy(); err != nil {
		return fmt.Errorf("the journal can't write records: %w", err)
	}
	return nil
}

// NotReady returns the reasons why the gateway is not ready, or nil if it is ready. If the policy service or the
// journal is unavailable, the gateway refuses all calls. If another service or a server is unavailable, only the calls
// that need that service or server are refused. Unauthenticated callers may read the reasons, so the reasons contain no
// details about the machine.
func (s *Service) NotReady() []string {
	var why []string
	if s.Health(context.Background()) != nil {
		why = append(why, "the journal can't write records; the gateway's log says why")
	}
	if reason := s.decisions.UnavailableReason(); reason != "" {
		why = append(why, reason)
	}
	if !s.deps.Tokens.HasSet() {
		why = append(why, "the identity service has not reported yet which tokens are valid")
	} else if !s.deps.Tokens.IsSourceAvailable() {
		why = append(why, "it is unknown which tokens are valid, because the identity service does not answer")
	}
	return why
}

// Degraded returns one sentence for each current problem, or nil if there is no problem. It reports mesh services that
// are unavailable, rate limits that are counted twice, a full disk of the journal, and call arguments that cannot be
// recorded. Unauthenticated callers may read the sentences.
func (s *Service) Degraded() []string {
	why := s.peers.missing()
	if s.pipeline != nil && s.pipeline.IsMiscounting() {
		why = append(why, attempt.Miscounted)
	}
	if s.journal.DiskFull() {
		why = append(why, "the disk of the journal is full: records are written to reserved space, which is enough for some thousand calls; free space on the disk")
	}
	if fault := s.arguments.Fault(); fault != nil {
		why = append(why, argumentsFault(fault))
	}
	return why
}

// Run serves MCP until ctx is cancelled. Then it waits for requests in flight and closes the sessions.
func (s *Service) Run(ctx context.Context) error {
	front, err := s.tlsListener()
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	drained, stop := context.WithCancel(context.WithoutCancel(ctx))
	server := s.mcp.HTTPServer()
	s.warnOfPrograms(ctx)
	s.deps.Log.InfoContext(ctx, "serving MCP", "address", s.lis.Addr().String(), "servers", slices.Sorted(maps.Keys(s.servers)))
	group.Go(func() error {
		if err := server.Serve(front); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve MCP: %w", err)
		}
		return nil
	})
	if s.cert != nil {
		group.Go(func() error { return s.cert.Run(drained) })
	}
	group.Go(func() error { return s.sessions.Run(drained) })
	group.Go(func() error { return s.pipeline.Run(drained) })
	group.Go(func() error { return s.pipeline.Replay(drained, s.openCalls) })
	group.Go(func() error { return s.decisions.Run(drained) })
	group.Go(func() error { return s.peers.run(drained) })
	group.Go(func() error { return s.mcp.Discover(ctx) })
	group.Go(func() error { s.removeEndedFolders(ctx); return nil })
	group.Go(func() error {
		<-ctx.Done()
		defer stop()
		return s.drain(context.WithoutCancel(ctx), server)
	})
	return group.Wait()
}

// drain waits for requests in flight. After cutTimeout, it cancels the remaining calls.
func (s *Service) drain(ctx context.Context, server *http.Server) error {
	ctx, cancel := context.WithTimeout(ctx, drainTimeout)
	defer cancel()
	timer := time.AfterFunc(cutTimeout, func() {
		s.deps.Log.WarnContext(ctx, "calls in flight take too long; they are cancelled")
		s.pipeline.Stop()
	})
	defer timer.Stop()
	s.pipeline.Drain()        // calls that wait for approvers end with their tickets
	s.sessions.CloseStreams() // without this call, Shutdown would wait for listening clients
	defer s.pipeline.Wait(ctx)
	defer s.mcp.Drain(ctx)
	if err := server.Shutdown(ctx); err != nil {
		return errors.Join(fmt.Errorf("requests in flight were cut off: %w", err), server.Close())
	}
	return nil
}

// Close closes everything that New opened. It may be called after Run has returned, or without calling Run.
func (s *Service) Close() error {
	var errs []error
	if s.lis != nil {
		if err := s.lis.Close(); !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	for _, up := range s.servers {
		errs = append(errs, up.Close())
	}
	if s.limiter != nil {
		s.limiter.Close()
	}
	errs = append(errs, s.arguments.Close())
	if s.journal != nil {
		errs = append(errs, s.journal.Close())
	}
	if s.dir != nil {
		errs = append(errs, s.dir.Close())
	}
	return errors.Join(errs...)
}

func (s *Service) recordSession(sess *session.Session) {
	// The metric counts only sessions of clients. It does not count sessions that are part of an aggregate session, which
	// covers all servers.
	if sess.Version != mcp.Modern && sess.Hub == nil {
		s.meters.RecordClientSession(context.Background(), sess.Version, time.Since(sess.Opened))
	}
}
