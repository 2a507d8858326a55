// Package policy implements the policy service (sluice.policy.v1). The service stores the policy documents and the tool
// catalog, and makes decisions on calls.
package policy

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/singleflight"
	"google.golang.org/grpc"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/changesignal"
	"github.com/sluice-mesh/sluice/services/internal/datadir"
	"github.com/sluice-mesh/sluice/services/internal/fairqueue"
	"github.com/sluice-mesh/sluice/services/internal/lru"
	"github.com/sluice-mesh/sluice/services/internal/signeddecision"
	"github.com/sluice-mesh/sluice/services/internal/sqlstore"
	"github.com/sluice-mesh/sluice/services/internal/strictyaml"
	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
	"github.com/sluice-mesh/sluice/services/policy/internal/epochlease"
	"github.com/sluice-mesh/sluice/services/policy/internal/store"
)

// homeTenant is the tenant of the installation. Its operators manage the whole mesh.
const homeTenant = authn.HomeTenant

const (
	// heartbeatInterval is the interval at which a watcher receives a message even if nothing has changed. The API
	// documentation promises at most 500 ms.
	heartbeatInterval = 400 * time.Millisecond
	// defaultPageSize is the page size if a request does not specify one.
	defaultPageSize = 100
)

// Deps contains the dependencies of a [Service]. All fields are required, except for Approvals and Reload.
type Deps struct {
	// Tokens contains the valid tokens.
	Tokens *authn.Tokens
	// Signer signs decisions for the approval service.
	Signer *signeddecision.Signer
	// Log receives messages for operators.
	Log *slog.Logger
	// Approvals is the client of the approval service, which asks people to approve changes to the documents. It is
	// required only if such changes need an approval.
	Approvals approvalv1.ApprovalServiceClient
	// Reload reads the tokens in the configuration again. If Reload is nil, the tokens never change.
	Reload func() (People, error)
}

func (d *Deps) check(approvals bool) error {
	if d.Tokens == nil || d.Signer == nil || d.Log == nil || approvals && d.Approvals == nil {
		return errors.New("policy: every dependency is required")
	}
	return nil
}

// Service implements policyv1.PolicyServiceServer. [Service.Register] also registers the catalog service.
// A Service is safe for concurrent use.
type Service struct {
	policyv1.UnimplementedPolicyServiceServer

	cfg  Config
	deps Deps
	// approvers contains the people who may approve calls, and the agents whose calls may need an approval. Only
	// principals with configured tokens are listed.
	approvers atomic.Pointer[engine.Approvers]
	// holders contains the principals that have configured tokens.
	holders atomic.Pointer[People]
	store   *store.Store
	dir     *datadir.Dir // nil if the store is in PostgreSQL

	active  atomic.Pointer[activeSet]
	changes *changesignal.Signal
	// epochLeases records until when gateways may reuse cached decisions.
	epochLeases *epochlease.Register
	// boot is a random string that is different each time the service starts.
	boot string
	// opened is the time when the store was opened.
	opened time.Time
	// changing protects replacements of the active set.
	changing sync.Mutex
	// reading lets concurrent callers share one read of the store.
	reading singleflight.Group
	// version is the store version of the last read. stopsRead is the store version when the stops were last read.
	version, stopsRead int64
	// inStore is locked while the store is being read or closed.
	inStore sync.Mutex
	// loading is a newer revision in the store that is being read and compiled. It is nil if there is no such revision.
	// While it is not nil, no decisions are made.
	loading atomic.Pointer[loadingRevision]
	// lastRead is the time when the last successful read of the store began. It is not nil once the service is open.
	lastRead atomic.Pointer[time.Time]
	// listSlots limits how many lists of tools or names are processed at the same time. Decisions on calls do not use
	// these slots, so they never wait for lists.
	listSlots *fairqueue.Queue[owner]
	// callerReportSlots limits how many reports of tool lists are received at once if a caller requested the list.
	// gatewayReportSlots does the same for lists that a gateway requested itself. The limits are separate so that
	// gateways' own reports never wait for the others.
	callerReportSlots, gatewayReportSlots *fairqueue.Queue[owner]
	// conditionSlots limits the number of slow decisions that are made at the same time. A decision is slow if conditions
	// read the arguments, or if the arguments are checked against a schema.
	conditionSlots *fairqueue.Queue[owner]
	// lintSlots limits how many checks of documents run at the same time. These slots are separate from listSlots, so that
	// lists do not wait for the tests in documents.
	lintSlots *fairqueue.Queue[owner]
	// replaySlots limits how many replays are open at the same time. While a replay evaluates records, it also holds one
	// of lintSlots.
	replaySlots *fairqueue.Queue[owner]
	// diffSlots limits how many comparisons are open at the same time. While a comparison works, it also holds one of
	// lintSlots.
	diffSlots *fairqueue.Queue[owner]
	// scopes caches the scopes that the rules of the active set require.
	scopes atomic.Pointer[setScopes]
	// schemas caches the compiled input schemas of definitions.
	schemas *lru.Cache[schemaKey, *compiledSchema]
}

// activeSet is the active policy. It is immutable.
type activeSet struct {
	*engine.Set
	// number identifies the set. Each activation uses a greater number.
	number uint64
	// stored is the activation of the documents. It is nil if the documents come from files. It is the zero value if no
	// documents have been applied yet.
	stored  *store.Revision
	catalog *catalogSnapshot
	// revision identifies the documents, the catalog and the stops.
	revision string
	// stopsVersion is the store version from which the stops in this set were read.
	stopsVersion int64
	documents    []*policyv1.Document
	activated    time.Time
	// warnings contains the warnings about the active documents. They are logged.
	warnings strictyaml.Errors
	// rejected says why newer documents can't be used. It is empty if this set was compiled from the newest documents.
	rejected []*policyv1.Finding
}

// Revision returns the SHA-256 digest that identifies the documents, the catalog and the stops, in hexadecimal.
func (a *activeSet) Revision() string { return a.revision }

// New loads the documents and returns a Service, which the caller must close. If documents in files can't be used, New
// returns an error. If the files later change and can't be used, the service only logs the problem.
func New(ctx context.Context, cfg Config, deps Deps) (*Service, error) {
	if err := errors.Join(deps.check(cfg.Changes != nil), cfg.Validate()); err != nil {
		return nil, err
	}
	reports, err1 := fairqueue.New[owner](maxReports, maxReportsEach)
	whole, err2 := fairqueue.New[owner](maxReports, maxReportsEach)
	replays, err3 := fairqueue.New[owner](maxReplays, 1)
	diffs, err4 := fairqueue.New[owner](maxDiffs, 1)
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return nil, err
	}
	s := &Service{
		cfg: cfg, deps: deps, changes: changesignal.New(), epochLeases: epochlease.New(), boot: rand.Text(),
		listSlots: fairqueue.NewForProcessor[owner](), callerReportSlots: reports, gatewayReportSlots: whole, conditionSlots: fairqueue.NewForProcessor[owner](),
		lintSlots: fairqueue.NewForProcessor[owner](), replaySlots: replays, diffSlots: diffs,
		schemas: newSchemaCache(),
	}
	s.holders.Store(&cfg.People)
	s.approvers.Store(cfg.approvers(cfg.OwnerMayApprove))
	set := &activeSet{activated: time.Now()}
	if !cfg.Stored {
		if err := s.loadFiles(ctx, set); err != nil {
			return nil, fmt.Errorf("the policies do not load:\n%w", err)
		}
	}
	if err := s.open(ctx, set); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// loadFiles reads the documents from the configured files and compiles them.
func (s *Service) loadFiles(ctx context.Context, set *activeSet) (err error) {
	if set.documents, err = read(s.cfg.Paths); err != nil {
		return err
	}
	set.Set, set.warnings, err = s.cfg.compile(ctx, set.documents, s.people())
	return err
}

func (s *Service) open(ctx context.Context, set *activeSet) (err error) {
	if err := s.openStore(ctx); err != nil {
		return err
	}
	if s.cfg.Stored {
		if err := s.loadStored(ctx, set); err != nil {
			return err
		}
	}
	s.opened = time.Now() // from now on, no other process uses the store if it is SQLite
	began := s.opened
	servers, err := s.readChanges(ctx)
	if err != nil {
		return err
	}
	set.catalog = newCatalogSnapshot().with(s.version, s.settings, servers...)
	set.revision = revisionOf(set.Set, set.catalog)
	s.active.Store(set)
	if err := s.readStops(ctx); err != nil {
		return err
	}
	s.lastRead.Store(&began)
	return nil
}

// Close closes the store.
func (s *Service) Close() error {
	s.inStore.Lock()
	defer s.inStore.Unlock()
	var errs []error
	if s.store != nil {
		errs = append(errs, s.store.Close())
	}
	if s.dir != nil {
		errs = append(errs, s.dir.Close())
	}
	return errors.Join(errs...)
}

// Run follows changes to the documents, and changes that other processes make to the catalog. When observe mode ends
// for a part of the policy, Run starts to enforce this part. Run returns when ctx is cancelled.
func (s *Service) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return s.watch(ctx) })
	group.Go(func() error { return s.follow(ctx) })
	group.Go(func() error { return s.enforceOnTime(ctx) })
	return group.Wait()
}

// Register implements rpc.Service.
func (s *Service) Register(r grpc.ServiceRegistrar) {
	policyv1.RegisterPolicyServiceServer(r, s)
	policyv1.RegisterCatalogServiceServer(r, catalogServer{Service: s})
}

// Health implements rpc.HealthChecker.
func (s *Service) Health(context.Context) error {
	if s.active.Load() == nil {
		return errNoPolicy
	}
	return s.checkFresh()
}

// DecideCall implements policyv1.PolicyServiceServer.
func (s *Service) DecideCall(ctx context.Context, req *policyv1.DecideCallRequest) (*policyv1.DecideCallResponse, error) {
	set, subject, err := s.resolve(ctx, req.GetMinRevision(), req.GetSubject())
	if err != nil {
		return nil, toStatus(err)
	}
	call, err := s.unpackCall(ctx, set, req.GetCall(), subject)
	if err != nil {
		return nil, toStatus(err)
	}
	if set.EvaluatesConditions(call) || req.GetAttest() != nil { // to sign a decision, the params must be parsed
		done, err := s.conditionSlots.Acquire(ctx, ownerOf(subject))
		if err != nil {
			return nil, err
		}
		defer done()
	}
	decided := set.Decide(call)
	resp := &policyv1.DecideCallResponse{Decision: s.refusesToken(set, authn.CallerOf(ctx).Principal)}
	hasToken := resp.GetDecision() == nil
	if hasToken {
		resp.Decision = packDecision(set, decided, &call.Facts)
	}
	if req.GetAttest() != nil {
		if resp.SignedDecision, err = s.attest(ctx, set, req, resp.GetDecision()); err != nil {
			return nil, toStatus(err)
		}
	} else if cacheability := set.Cacheability(call, decided); hasToken && cacheability.Cacheable {
		resp.Keeping = &policyv1.Keeping{Epoch: s.epoch(set), BySession: cacheability.BySession}
	}
	return resp, nil
}

// ExplainCall implements policyv1.PolicyServiceServer.
func (s *Service) ExplainCall(ctx context.Context, req *policyv1.ExplainCallRequest) (*policyv1.ExplainCallResponse, error) {
	set, subject, err := s.resolve(ctx, "", req.GetSubject())
	if err != nil {
		return nil, toStatus(err)
	}
	call, err := s.unpackCall(ctx, set, req.GetCall(), subject)
	if err != nil {
		return nil, toStatus(err)
	}
	if set.ChecksArguments(call) {
		done, err := s.conditionSlots.Acquire(ctx, ownerOf(subject))
		if err != nil {
			return nil, err
		}
		defer done()
	}
	out := packExplanation(set, set.Explain(call), &call.Facts)
	if !mayReadDocuments(authn.CallerOf(ctx)) {
		withholdRules(out)
	}
	return out, nil
}

// CheckServer implements policyv1.PolicyServiceServer.
func (s *Service) CheckServer(ctx context.Context, req *policyv1.CheckServerRequest) (*policyv1.CheckServerResponse, error) {
	set, subject, err := s.resolve(ctx, "", req.GetSubject())
	if err != nil {
		return nil, toStatus(err)
	}
	access := set.Access(subject, req.GetServer())
	resp := &policyv1.CheckServerResponse{
		CouldAllow: access.CouldAllow, HidesNone: access.HidesNone, PolicyRevision: set.Revision(),
		PromptsAlike: access.PromptsAlike, ResourcesAlike: access.ResourcesAlike, CouldList: access.CouldList,
	}
	for _, method := range req.GetMethods() {
		if set.CouldAllow(subject, req.GetServer(), method, set.catalog.servers[req.GetServer()].ServerFacts()) {
			resp.Methods = append(resp.Methods, method)
		}
	}
	return resp, nil
}

// resolve returns the set for a request, and the principal whose calls the request is about. If a service of the mesh
// sends the request, this is the principal on whose behalf the service calls. The request must then not name a
// principal. If a person sends the request, the request must name the principal.
func (s *Service) resolve(ctx context.Context, minRevision string, named *identityv1.Principal) (*activeSet, engine.Subject, error) {
	if err := s.waitForLoading(ctx); err != nil {
		return nil, engine.Subject{}, err
	}
	set, err := s.current(ctx)
	if err != nil {
		return nil, engine.Subject{}, err
	}
	if set == nil {
		return nil, engine.Subject{}, errNoPolicy
	}
	if err := s.checkFresh(); err != nil {
		return nil, engine.Subject{}, err
	}
	if minRevision != "" && !set.reaches(minRevision) {
		// Another process may have stored the revision. The store is read twice, because the first read may be shared with a
		// caller that began it before the revision was stored.
		for range 2 {
			if s.cfg.Source == sqlstore.SQLite || set.reaches(minRevision) || s.catchUp(ctx) != nil {
				break
			}
			if set, err = s.current(ctx); err != nil {
				return nil, engine.Subject{}, err
			}
		}
		if !set.reaches(minRevision) {
			return nil, engine.Subject{}, errTooOld
		}
	}
	caller := authn.CallerOf(ctx)
	switch {
	case caller == nil:
		return nil, engine.Subject{}, errors.New("the call has no caller")
	case caller.Person == nil && named != nil:
		return nil, engine.Subject{}, errSubjectNamed
	case caller.Person == nil:
		named = caller.Principal
	case named == nil:
		return nil, engine.Subject{}, errSubjectMissing
	case caller.Tenant() != homeTenant && !ofTenant(named, caller.Tenant()):
		return nil, engine.Subject{}, errOtherTenant
	}
	subject, err := unpackSubject(named)
	return set, subject, err
}

func ofTenant(p *identityv1.Principal, tenant string) bool {
	foreign := func(p *identityv1.Principal) bool { return p.GetTenant() != tenant }
	return !foreign(p) && !slices.ContainsFunc(p.GetChain(), foreign)
}
