// Package policy serves sluice.policy.v1: it stores the policy documents and the tool catalog, and evaluates calls.
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
	// heartbeatInterval is how often a watcher receives a message even if nothing has changed. It is shorter than the
	// 500 ms that the API documentation promises.
	heartbeatInterval = 400 * time.Millisecond
	// defaultPageSize is the page size if the request sets no page size.
	defaultPageSize = 100
)

// Deps contains the dependencies of a [Service]. All fields except Approvals and Reload are required.
type Deps struct {
	// Tokens contains the valid tokens.
	Tokens *authn.Tokens
	// Signer signs decisions for the approval service.
	Signer *signeddecision.Signer
	// Log receives messages for operators.
	Log *slog.Logger
	// Approvals is used to ask people to approve changes to the documents. It is required if such changes need an
	// approval.
	Approvals approvalv1.ApprovalServiceClient
	// Reload reads the holders of the configuration's tokens again. If Reload is nil, they don't change.
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
	// approvers lists the holders of configured tokens who may approve calls, and the holders of configured tokens
	// whose calls may need an approval.
	approvers atomic.Pointer[engine.Approvers]
	// holders contains the holders of the configured tokens.
	holders atomic.Pointer[People]
	store   *store.Store
	dir     *datadir.Dir // nil if the store is PostgreSQL

	active  atomic.Pointer[activeSet]
	changes *changesignal.Signal
	// epochLeases records the periods in which gateways may reuse cached decisions. The field boot is a random string
	// that differs after each start. The field opened is the time at which the store was opened.
	epochLeases *epochlease.Register
	boot        string
	opened      time.Time
	// changing is locked while the field active is replaced.
	changing sync.Mutex
	// reading allows concurrent callers to share one read of the store. The field version is the version of the store
	// that was read last. stopsRead is the version at which the stops were read. inStore is locked while the store is
	// being read or closed.
	reading            singleflight.Group
	version, stopsRead int64
	inStore            sync.Mutex
	// loading is a newer revision in the store that is being compiled. It is nil if there is no such revision. While a
	// revision is being compiled, no call is evaluated.
	loading atomic.Pointer[loadingRevision]
	// lastRead is the time at which the last successful read of the store started. It is never nil after open.
	lastRead atomic.Pointer[time.Time]
	// listSlots limits how many lists of tools or names are processed at the same time. The evaluation of calls does
	// not use these slots, so it never waits for lists.
	listSlots *fairqueue.Queue[owner]
	// callerReportSlots limits how many reports of tool lists that callers requested are received at the same time.
	// gatewayReportSlots limits how many reports of tool lists that gateways themselves requested are received at the
	// same time. The slots are separate, so that gateways' reports never wait for callers' reports.
	callerReportSlots, gatewayReportSlots *fairqueue.Queue[owner]
	// conditionSlots limits how many calls are evaluated at the same time if they have conditions on their arguments,
	// or arguments to check against a schema.
	conditionSlots *fairqueue.Queue[owner]
	// lintSlots limits how many checks of documents run at the same time. These slots are separate from listSlots, so
	// that lists do not wait for the tests in documents.
	lintSlots *fairqueue.Queue[owner]
	// replaySlots limits the number of open replays. While a replay evaluates records, it also occupies one of the
	// lintSlots.
	replaySlots *fairqueue.Queue[owner]
	// diffSlots limits the number of open comparisons. While a comparison works, it also occupies one of the lintSlots.
	diffSlots *fairqueue.Queue[owner]
	// scopes contains the scopes that the rules of a set need.
	scopes atomic.Pointer[setScopes]
	// schemas caches the compiled input schemas of definitions.
	schemas *lru.Cache[schemaKey, *compiledSchema]
}

// activeSet is the active revision. It is immutable.
type activeSet struct {
	*engine.Set
	// number is unique. Sets that are activated later have greater numbers.
	number uint64
	// stored is the activation of the documents. It is nil if the documents come from files, and the zero Revision if
	// no documents have been applied.
	stored *store.Revision
	// catalog is the tool catalog. revision identifies the documents, the catalog and the stops. stopsVersion is the
	// version of the store from which the stops of this set were read.
	catalog      *catalogSnapshot
	revision     string
	stopsVersion int64
	documents    []*policyv1.Document
	activated    time.Time
	// warnings contains the warnings about the active documents, which are logged.
	warnings strictyaml.Errors
	// rejected contains the reasons why newer documents could not be loaded. It is empty if this set was compiled from
	// the newest documents.
	rejected []*policyv1.Finding
}

// Revision returns the SHA-256 digest, in hexadecimal, that identifies the documents, the catalog and the stops.
func (a *activeSet) Revision() string { return a.revision }

// New loads the documents and returns a Service, which the caller must close. New returns an error if the
// documents in files can't be loaded. If the files change later and can't be loaded then, the service only logs the
// problem.
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

// loadFiles reads and compiles the documents in files.
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
	s.opened = time.Now() // from now on no other process uses a SQLite store
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

// Run watches the documents, and the changes that other processes make to the catalog. When observe mode ends for a
// part of the policy, Run enforces this part. Run returns when ctx is cancelled.
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
	if set.EvaluatesConditions(call) || req.GetAttest() != nil { // signing parses the params a second time
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

// resolve returns the set that a request is evaluated with, and the principal whose calls are evaluated. If a service
// of the mesh sends the request, this is the principal on whose behalf the service calls, and the request must not name
// a principal. If an operator sends the request, the request must name the principal.
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
		// Another process may have stored the revision. The store is read twice, because the first read may be shared
		// with another caller and may have started before the revision was stored.
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
