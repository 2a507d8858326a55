// Package discovery queries servers on behalf of the gateway, and caches the results. A result contains the server's
// tool list and its answer to initialize or server/discover. The gateway queries the server as a client without
// capabilities. The gateway uses the results for tool lists, and to answer callers that have no permissions on a
// server.
package discovery

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"go.opentelemetry.io/otel/trace"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/aggregate"
	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/limits"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/paramheaders"
	"github.com/sluice-mesh/sluice/services/gateway/internal/toolreport"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/principal"
)

const (
	// Fresh is the maximum age of a result that is used.
	Fresh = 5 * time.Minute
	// minPause is the pause after a failed query. With each consecutive failure, the pause doubles, up to maxPause.
	minPause = 250 * time.Millisecond
	maxPause = 5 * time.Second
	// maxRetries is how many consecutive failures [Server.GetWithRetry] tolerates before it returns nil.
	maxRetries = 2
	// closeTimeout is the timeout for closing the gateway's session with a server.
	closeTimeout = 5 * time.Second
	// maxPages and maxTools limit how many pages and tools are read. [upstream.MaxMessage], the limit for the size of a
	// page, also limits the size of all pages together.
	maxPages = 100
	maxTools = 10_000
)

// catalogPrincipal is the principal that owns the gateway's own sessions with servers.
var catalogPrincipal = principal.Key{Tenant: "system", Subject: principal.Catalogue} //nolint:gochecknoglobals // a constant; Go has no constant structs

// gatewayClient is the client description that the gateway sends to servers.
var gatewayClient = &upstream.Client{Name: "sluice", Version: "1"} //nolint:gochecknoglobals // a constant; Go has no constant structs

// reportPrincipal returns the principal on whose behalf the gateway reports lists to the catalog.
func reportPrincipal() *identityv1.Principal {
	return &identityv1.Principal{Tenant: "default", Subject: principal.Catalogue, Role: authv1.TokenRole_TOKEN_ROLE_AGENT}
}

// ErrList means that a server's list of tools can't be read.
var ErrList = errors.New("the server's answer is not a list of tools")

// Result is the result of querying a server. It is immutable.
type Result struct {
	// Greeting is the server's successful answer to initialize or server/discover.
	Greeting *jsonrpc.Answer
	// List is an answer to tools/list that contains all tools on one page.
	List *jsonrpc.Answer
	// Version is the negotiated MCP revision. Known is the catalog's response to the report about the list.
	Version string
	Known   *toolreport.Response
	// Aliases maps the tools' names in a joined list of many servers to the server's own names.
	Aliases aggregate.ToolAliases
	// AggregateList is the form of List that the gateway joins with the lists of other servers. AggregateList omits
	// malformed tools, because a strict client would refuse a joined list that contains one. It also omits optional
	// members whose value is null.
	AggregateList *jsonrpc.Answer
	// Faults explains why clients do not receive some of the tools in List. The faults are in the order of the tools in
	// List.
	Faults []Fault
	// paramHeaders maps a tool's name to the arguments that a call to the tool must repeat in HTTP headers (MCP
	// 2026-07-28).
	paramHeaders map[string][]paramheaders.Binding
	// At is when the server was queried.
	At time.Time
}

// client returns the client description that a list request to a stateless server must contain (MCP 2026-07-28). It
// returns nil if the server uses sessions.
func (f *Result) client() *upstream.Client {
	if f.Version != mcp.Modern {
		return nil
	}
	return gatewayClient
}

// Config configures a [Server].
type Config struct {
	// Name is the name of the server.
	Name string
	// Version is the MCP revision of the queries. If it is empty, the server is queried in the newest revision that uses
	// sessions. If the server supports no revision with sessions, it is queried in the stateless revision 2026-07-28.
	Version string
	// Timeout is the timeout of one query.
	Timeout time.Duration
}

// Deps are the dependencies of a [Server]. Every field is required.
type Deps struct {
	Server *upstream.Server
	// Room is the memory budget for servers' answers while the gateway reads them.
	Room      *limits.Budget
	Catalogue *toolreport.Reporter
	// Changed is called when the server's tool list has changed. It must not block.
	Changed func()
}

// Server queries one server and caches the last result. It is safe for concurrent use.
type Server struct {
	cfg  Config
	deps Deps

	// last contains the same result as found, and can be read without the lock.
	last atomic.Pointer[Result]

	mu    sync.Mutex
	found *Result
	// greeted is true if the server has answered initialize or server/discover, even if its list could not be read.
	greeted bool
	// changes is how often the server's list has changed.
	changes int
	// recheckScheduled is true if RecheckList has scheduled another query.
	recheckScheduled bool
	// failures is the number of consecutive failed queries.
	failures int
	err      error         // the error of the last query, or nil
	failed   time.Time     // when a query last failed
	asking   chan struct{} // closed when the running query ends; nil if no query is running
}

// New returns a Server that has no result yet. It does not query the server.
func New(cfg Config, deps Deps) (*Server, error) {
	if deps.Server == nil || deps.Room == nil || deps.Catalogue == nil || deps.Changed == nil || cfg.Timeout <= 0 {
		return nil, errors.New("discovery: a server, a memory budget, the catalog, a function for changes and a positive timeout are required")
	}
	return &Server{cfg: cfg, deps: deps}, nil
}

// Last returns the last result, regardless of its age, or nil if there is none.
func (s *Server) Last() *Result { return s.last.Load() }

// Changes returns how often the server's tool list has changed.
func (s *Server) Changes() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changes
}

// SpeaksRevision reports whether the server is known to support the revision of the queries.
func (s *Server) SpeaksRevision() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.greeted
}

// RefusedRevision reports whether the server has answered within the last five minutes that it does not support the
// revision of the queries.
func (s *Server) RefusedRevision() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return errors.Is(s.err, upstream.ErrRevision) && time.Since(s.failed) <= Fresh
}

// TimedOut reports whether the last query failed with a timeout within the last five minutes.
func (s *Server) TimedOut() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return errors.Is(s.err, upstream.ErrTimeout) && time.Since(s.failed) <= Fresh
}

// ReportError returns an error that wraps [toolreport.ErrNotReported] if there is no result because the catalog has not
// accepted the server's list. In that case, the catalog would not accept the list from a client's session either. No
// operator needs to act.
func (s *Server) ReportError() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.found == nil && errors.Is(s.err, toolreport.ErrNotReported) {
		return s.err
	}
	return nil
}

// GetWithRetry does the same as [Server.Get] for a server that has just answered in a session. If the last query failed
// recently, GetWithRetry waits until the server is queried again. It returns nil after three consecutive failures, if
// another query would be pointless, or when ctx is done.
func (s *Server) GetWithRetry(ctx context.Context) *Result {
	for {
		found, err := s.Get(ctx, Fresh)
		if err == nil {
			return found
		}
		s.mu.Lock()
		wait := time.Until(s.failed.Add(s.pause()))
		over := s.failures > maxRetries || s.isPointless()
		s.mu.Unlock()
		if over || ctx.Err() != nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait + time.Millisecond):
		}
	}
}

// ParamHeaders returns the arguments that a call to the tool must repeat in HTTP headers, according to the last result.
func (s *Server) ParamHeaders(tool string) []paramheaders.Binding {
	if found := s.Last(); found != nil {
		return found.paramHeaders[tool]
	}
	return nil
}

// RefreshInBackground starts a query in the background if the last result is older than the given age.
func (s *Server) RefreshInBackground(age time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.asking != nil || s.found != nil && time.Since(s.found.At) <= age || time.Since(s.failed) <= s.pause() {
		return
	}
	s.asking = make(chan struct{})
	go func() { _, _ = s.refresh(context.Background()) }() // the result is stored
}

// RecheckList queries the server again after the server has sent different tool definitions in a session. If the last
// result is older than the given age, RecheckList queries the server immediately and waits for the result. Otherwise it
// returns immediately, and the server is queried as soon as the last result has reached that age.
func (s *Server) RecheckList(ctx context.Context, age time.Duration) {
	s.mu.Lock()
	if s.found == nil || time.Since(s.found.At) > age {
		s.mu.Unlock()
		_, _ = s.Get(ctx, age) // the result is stored
		return
	}
	defer s.mu.Unlock()
	if s.recheckScheduled {
		return
	}
	s.recheckScheduled = true
	time.AfterFunc(age-time.Since(s.found.At)+time.Millisecond, func() {
		s.mu.Lock()
		s.recheckScheduled = false
		s.mu.Unlock()
		s.RefreshInBackground(age)
	})
}

// Get returns a result that is not older than the given age. If there is none, it queries the server. Concurrent
// callers share one query. Get returns the errors of [upstream.Session], and errors that wrap [ErrList] or
// [toolreport.ErrNotReported].
func (s *Server) Get(ctx context.Context, age time.Duration) (*Result, error) {
	for {
		s.mu.Lock()
		switch {
		case s.found != nil && time.Since(s.found.At) <= age:
			defer s.mu.Unlock()
			return s.found, nil
		case time.Since(s.failed) <= s.pause():
			defer s.mu.Unlock()
			return nil, s.err
		case s.asking == nil:
			s.asking = make(chan struct{})
			s.mu.Unlock()
			return s.refresh(ctx)
		}
		asking := s.asking
		s.mu.Unlock()
		select {
		case <-asking:
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", upstream.ErrNeverSent, ctx.Err())
		}
	}
}

// pause returns how long the gateway waits after the last failure before it queries the server again. It returns 0 if
// the last query succeeded. The caller must hold the lock.
func (s *Server) pause() time.Duration {
	switch {
	case s.err == nil:
		return 0
	case s.isPointless():
		return maxPause
	default:
		return min(minPause<<min(s.failures-1, 10), maxPause)
	}
}

// isPointless reports whether the gateway should wait for a long time before it queries the server again. This is the
// case if the last query timed out, because such queries are expensive, or if the server does not support the revision.
// The caller must hold the lock.
func (s *Server) isPointless() bool {
	return errors.Is(s.err, upstream.ErrTimeout) || errors.Is(s.err, upstream.ErrRevision)
}

// refresh queries the server. It continues even if ctx is cancelled, because other callers might be waiting for the
// result.
func (s *Server) refresh(ctx context.Context) (*Result, error) {
	ctx = trace.ContextWithSpan(context.WithoutCancel(ctx), nil) // the query belongs to no caller's trace
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	at := time.Now()
	found, err := (*Result)(nil), fmt.Errorf("%w: it could not be asked", upstream.ErrNoAnswer)
	defer func() { s.storeResult(found, err) }() // stores the result even if query panics
	found, err = s.query(ctx, at)
	return found, err
}

// storeResult stores the result of a query and wakes the waiting callers.
func (s *Server) storeResult(found *Result, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err = err; err == nil {
		if s.found == nil || !bytes.Equal(s.found.List.Raw, found.List.Raw) {
			s.changes++
			defer s.deps.Changed()
		}
		s.found, s.failures = found, 0
	} else {
		s.failed = time.Now()
		s.failures++
	}
	if errors.Is(err, upstream.ErrRevision) {
		s.greeted, s.found = false, nil // the server might have been downgraded
	}
	s.last.Store(s.found)
	close(s.asking)
	s.asking = nil
}

func (s *Server) query(ctx context.Context, at time.Time) (*Result, error) {
	memory := s.deps.Room.Open(&limits.Owner{Server: s.cfg.Name})
	defer memory.Close()
	found, sess, err := s.openSession(ctx, memory)
	if err != nil {
		return nil, err
	}
	defer closeSession(ctx, sess)
	s.setGreeted()
	found.At = at
	if found.List, err = readTools(ctx, sess, found.client(), memory); err != nil {
		return nil, err
	}
	found.Aliases, found.paramHeaders = aggregate.NewToolAliases(s.cfg.Name, toolNames(found.List)), paramHeaders(found.List)
	if found.AggregateList, found.Faults, err = conformTools(s.cfg.Name, found.List, found.Aliases); err != nil {
		return nil, err
	}
	found.Known, err = s.deps.Catalogue.Report(ctx, toolreport.List{Server: s.cfg.Name, Version: found.Version, Complete: true, Recipient: reportPrincipal()}, found.List, 0)
	return found, err
}

func (s *Server) setGreeted() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.greeted = true
}

func toolNames(list *jsonrpc.Answer) (out []string) {
	for _, t := range list.Tools {
		out = append(out, t.Name)
	}
	return out
}

// paramHeaders returns, by tool name, the arguments that calls must repeat in headers.
func paramHeaders(list *jsonrpc.Answer) map[string][]paramheaders.Binding {
	out := make(map[string][]paramheaders.Binding)
	for _, t := range list.Tools {
		if bindings := paramheaders.Bindings(t.Definition.Of(list.Raw)); bindings != nil {
			out[t.Name] = bindings
		}
	}
	return out
}

// openSession opens a session, or detects that the server is stateless. If no revision is configured, openSession first
// tries the newest revision that uses sessions. If the server does not support it, openSession tries the stateless
// revision 2026-07-28.
func (s *Server) openSession(ctx context.Context, memory *limits.Memory) (*Result, *upstream.Session, error) {
	if s.cfg.Version == mcp.Modern {
		return s.openWithDiscover(ctx, memory)
	}
	sess, opened, err := s.deps.Server.Open(ctx, catalogPrincipal, upstream.Initialize(s.cfg.Version, gatewayClient.Name, gatewayClient.Version), memory)
	if s.cfg.Version == "" && s.deps.Server.CanBeModern() && opened.IsUnknownRequest() {
		if err == nil {
			closeSession(ctx, sess)
		}
		memory.Settle(0)
		if found, sess, modern := s.openWithDiscover(ctx, memory); modern == nil {
			return found, sess, nil
		}
	}
	if err != nil {
		return nil, nil, err
	}
	found, err := s.finishOpen(ctx, sess, opened.Message)
	if err != nil {
		closeSession(ctx, sess)
	}
	return found, sess, err
}

// finishOpen checks the server's answer to initialize and tells the server that the session is open.
func (s *Server) finishOpen(ctx context.Context, sess *upstream.Session, greeting *jsonrpc.Answer) (*Result, error) {
	if greeting.Error.Present() {
		return nil, fmt.Errorf("%w: it refused to open a session", upstream.ErrNoAnswer)
	}
	if err := sess.SendNotification(ctx, upstream.Initialized()); err != nil {
		return nil, err
	}
	version, err := jsontext.AppendUnquote(nil, greeting.ProtocolVersion.Of(greeting.Raw))
	if err != nil || !mcp.IsSupported(string(version)) {
		return nil, fmt.Errorf("%w: it speaks no revision of MCP that the gateway speaks", upstream.ErrNoAnswer)
	}
	return &Result{Greeting: greeting, Version: string(version)}, nil
}

// openWithDiscover queries a server with server/discover in the stateless revision 2026-07-28.
func (s *Server) openWithDiscover(ctx context.Context, memory *limits.Memory) (*Result, *upstream.Session, error) {
	sess, answer, err := s.deps.Server.Open(ctx, catalogPrincipal, upstream.Discover(gatewayClient), memory)
	if err != nil {
		return nil, nil, err
	}
	return &Result{Greeting: answer.Message, Version: mcp.Modern}, sess, nil
}

// closeSession closes a session. It ignores errors.
func closeSession(ctx context.Context, sess *upstream.Session) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	_ = sess.Close(ctx)
}

// readTools reads all pages of a tool list and joins them into one page.
func readTools(ctx context.Context, sess *upstream.Session, by *upstream.Client, memory *limits.Memory) (*jsonrpc.Answer, error) {
	whole := bytes.NewBufferString(`{"jsonrpc":"2.0","id":0,"result":{"tools":[`)
	tools, cursor, given := 0, "", make(map[string]bool)
	for n := range maxPages {
		if given[cursor] {
			return nil, &listError{fmt.Sprintf("page %d repeats the cursor of an earlier page", n)}
		}
		given[cursor] = true
		memory.Settle(0) // returns the memory of the previous page, which was copied
		answer, err := sess.SendRequest(ctx, upstream.ListTools(cursor, by), memory, nil)
		if err != nil {
			return nil, err
		}
		page := answer.Message
		none := cursor == "" && upstream.HasCode(page, mcp.CodeMethodUnknown) // the server has no tools
		switch tools += len(page.Tools); {
		case page.Error.Present() && !none:
			return nil, &listError{"the server answers with an error"}
		case !page.ToolList.Present() && !none:
			return nil, &listError{"the answer has no list of tools"}
		case tools > maxTools:
			return nil, &listError{fmt.Sprintf("it has more than %d tools", maxTools)}
		case whole.Len()+len(page.Raw) > upstream.MaxMessage:
			return nil, &listError{fmt.Sprintf("it has more than %d bytes", upstream.MaxMessage)}
		}
		for _, t := range page.Tools {
			if whole.Bytes()[whole.Len()-1] != '[' {
				whole.WriteByte(',')
			}
			whole.Write(t.Definition.Of(page.Raw))
		}
		raw := page.NextCursor.Of(page.Raw)
		next, _ := jsontext.AppendUnquote(nil, raw)
		if cursor = string(next); cursor == "" {
			whole.WriteByte(']')
			if by != nil {
				whole.WriteString(`,"resultType":"complete","ttlMs":0,"cacheScope":"private"`)
			}
			whole.WriteString(`}}`)
			return jsonrpc.ReadAnswer(whole.Bytes(), jsonrpc.AnswerLimits())
		}
	}
	return nil, &listError{fmt.Sprintf("it has more than %d pages", maxPages)}
}
