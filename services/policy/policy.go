// Package policy serves sluice.policy.v1 and sluice.identity.v1: it holds the
// policy documents and the tokens, and judges calls.
package policy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/attest"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/rpc"
	"github.com/sluice-mesh/sluice/services/internal/strictyaml"
	"github.com/sluice-mesh/sluice/services/internal/turn"
	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
)

// home is the tenant of the installation, whose operators run all of it.
const home = "default"

// Errors that clients act on.
var (
	errNoPolicy       = errors.New("no policy is active: the documents did not load; see the log of the policy service")
	errNoRevision     = errors.New("no such revision is kept: of policies that come from files only the active one is")
	errTooOld         = errors.New("the revision that was asked for is not active here yet")
	errSubject        = errors.New("a subject may be named by operators alone: a role's caller is the principal of its metadata")
	errSubjectMissing = errors.New("name the subject on whose behalf the call would be made")
	errTenant         = errors.New("that is for operators of the tenant \"default\": others name their own tenant, and change no policies")
	errInFiles        = errors.New("the policies come from files: change those")
	errAttest         = errors.New("a signature is for roles alone: who asks about others gets none")
	errParams         = errors.New("params_json can't be read")
	errNested         = errors.New("a principal of a chain has no chain of its own: the caller's names everybody, nearest first")
)

// Deps are the live objects that a [Service] works with. Every field is required.
type Deps struct {
	// Tokens is filled with the configured tokens.
	Tokens *authn.Tokens
	// Signer signs decisions for the approval service.
	Signer *attest.Signer
	// Log receives what people are to know.
	Log *slog.Logger
}

// Service implements policyv1.PolicyServiceServer, and with its parts the other
// contracts of the policy role. Methods that this version does not offer answer
// UNIMPLEMENTED.
type Service struct {
	policyv1.UnimplementedPolicyServiceServer

	cfg  Config
	deps Deps
	// people are those who may give the approvals.
	people *engine.People

	active  atomic.Pointer[activeSet]
	changes *signal
	// lists are the turns at judging lists: calls are not to wait for them.
	lists *turn.Turns[owner]
	// conditions are the turns at calls whose arguments are looked at.
	conditions *turn.Turns[owner]
}

// activeSet is the active revision. It is immutable.
type activeSet struct {
	*engine.Set
	// documents are what it was read from.
	documents []*policyv1.Document
	activated time.Time
	// warnings are for the log.
	warnings strictyaml.Errors
	// rejected is why newer documents did not replace it; empty where none are
	// newer.
	rejected []*policyv1.Finding
}

// New returns a Service whose documents are loaded and whose tokens are in place.
// Documents that don't load are an error here, and only a warning later.
func New(cfg Config, deps Deps) (*Service, error) {
	if deps.Tokens == nil || deps.Signer == nil || deps.Log == nil {
		return nil, errors.New("policy: every dependency is required")
	}
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if err := deps.Tokens.Replace(cfg.Tokens); err != nil {
		return nil, fmt.Errorf("policy: auth.tokens: %w", err)
	}
	s := &Service{
		cfg: cfg, deps: deps, people: cfg.people(), changes: newSignal(),
		lists: turn.ForProcessor[owner](), conditions: turn.ForProcessor[owner](),
	}
	documents, err := read(cfg.Paths)
	if err != nil {
		return nil, fmt.Errorf("the policies do not load:\n%w", err)
	}
	set, warnings, err := cfg.compile(documents, s.people)
	if err != nil {
		return nil, fmt.Errorf("the policies do not load:\n%w", err)
	}
	s.active.Store(&activeSet{Set: set, documents: documents, activated: time.Now(), warnings: warnings})
	return s, nil
}

// Register implements rpc.Service.
func (s *Service) Register(r grpc.ServiceRegistrar) {
	policyv1.RegisterPolicyServiceServer(r, s)
	policyv1.RegisterCatalogServiceServer(r, catalog{})
	identityv1.RegisterIdentityServiceServer(r, &identity{records: s.cfg.Tokens})
}

// Health implements rpc.HealthChecker.
func (s *Service) Health(context.Context) error {
	if s.active.Load() == nil {
		return errNoPolicy
	}
	return nil
}

// DecideCall implements policyv1.PolicyServiceServer.
func (s *Service) DecideCall(ctx context.Context, req *policyv1.DecideCallRequest) (*policyv1.DecideCallResponse, error) {
	set, who, err := s.judge(ctx, req.GetMinRevision(), req.GetSubject())
	if err != nil {
		return nil, toStatus(err)
	}
	call := unpackCall(req.GetCall(), who)
	if set.Evaluates(call) || req.GetAttest() != nil { // to sign reads the params once more
		done, err := s.conditions.Take(ctx, ownerOf(who))
		if err != nil {
			return nil, err
		}
		defer done()
	}
	resp := &policyv1.DecideCallResponse{Decision: packDecision(set, set.Decide(call))}
	if req.GetAttest() != nil {
		if resp.SignedDecision, err = s.attest(ctx, set, req, resp.GetDecision()); err != nil {
			return nil, toStatus(err)
		}
	}
	return resp, nil
}

// ExplainCall implements policyv1.PolicyServiceServer.
func (s *Service) ExplainCall(ctx context.Context, req *policyv1.ExplainCallRequest) (*policyv1.ExplainCallResponse, error) {
	set, who, err := s.judge(ctx, "", req.GetSubject())
	if err != nil {
		return nil, toStatus(err)
	}
	return packExplanation(set, set.Explain(unpackCall(req.GetCall(), who))), nil
}

// CheckServer implements policyv1.PolicyServiceServer.
func (s *Service) CheckServer(ctx context.Context, req *policyv1.CheckServerRequest) (*policyv1.CheckServerResponse, error) {
	set, who, err := s.judge(ctx, "", req.GetSubject())
	if err != nil {
		return nil, toStatus(err)
	}
	reach := set.Reach(who, req.GetServer())
	return &policyv1.CheckServerResponse{CouldAllow: reach.Some, HidesNone: reach.HidesNone, PolicyRevision: set.Revision()}, nil
}

// judge finds the revision that judges and on whose behalf: the principal that a
// role asserts, or the subject that an operator names. Neither may do what the
// other does.
func (s *Service) judge(ctx context.Context, minRevision string, named *identityv1.Principal) (*activeSet, engine.Subject, error) {
	set := s.active.Load()
	if set == nil {
		return nil, engine.Subject{}, errNoPolicy
	}
	if minRevision != "" && !set.reaches(minRevision) {
		return nil, engine.Subject{}, errTooOld
	}
	caller := authn.CallerOf(ctx)
	switch {
	case caller == nil:
		return nil, engine.Subject{}, errors.New("the call has no caller")
	case caller.Person == nil && named != nil:
		return nil, engine.Subject{}, errSubject
	case caller.Person == nil:
		named = caller.Principal
	case named == nil:
		return nil, engine.Subject{}, errSubjectMissing
	case caller.Tenant() != home && !ofTenant(named, caller.Tenant()):
		return nil, engine.Subject{}, errTenant
	}
	who, err := unpackSubject(named)
	return set, who, err
}

// ofTenant tells whether a principal and all behind it belong to a tenant.
func ofTenant(p *identityv1.Principal, tenant string) bool {
	foreign := func(p *identityv1.Principal) bool { return p.GetTenant() != tenant }
	return !foreign(p) && !slices.ContainsFunc(p.GetChain(), foreign)
}

// toStatus is the only place where this service's errors meet gRPC codes.
func toStatus(err error) error {
	switch {
	case errors.Is(err, errNoPolicy):
		return &rpc.Error{Code: codes.FailedPrecondition, Reason: "POLICY_NONE_ACTIVE", Err: err}
	case errors.Is(err, errNoRevision):
		return &rpc.Error{Code: codes.NotFound, Reason: "REVISION_UNKNOWN", Err: err}
	case errors.Is(err, errTooOld):
		return &rpc.Error{Code: codes.FailedPrecondition, Reason: "POLICY_TOO_OLD", Err: err}
	case errors.Is(err, errSubject):
		return &rpc.Error{Code: codes.InvalidArgument, Reason: "SUBJECT_REFUSED", Err: err}
	case errors.Is(err, errTenant):
		return &rpc.Error{Code: codes.PermissionDenied, Reason: "TENANT_REFUSED", Err: err}
	case errors.Is(err, errInFiles):
		return &rpc.Error{Code: codes.FailedPrecondition, Reason: "POLICIES_IN_FILES", Err: err}
	case errors.Is(err, errAttest):
		return &rpc.Error{Code: codes.InvalidArgument, Reason: "ATTEST_REFUSED", Err: err}
	case errors.Is(err, errParams):
		return &rpc.Error{Code: codes.InvalidArgument, Reason: "JSON_INVALID", Err: err}
	case errors.Is(err, errNested):
		return &rpc.Error{Code: codes.InvalidArgument, Reason: "CHAIN_NESTED", Err: err}
	case errors.Is(err, errSubjectMissing):
		return &rpc.Error{Code: codes.InvalidArgument, Reason: "SUBJECT_MISSING", Err: err}
	default:
		return err
	}
}
