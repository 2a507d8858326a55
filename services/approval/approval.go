// Package approval serves sluice.approval.v1: it keeps what waits for a person,
// counts the votes of people who may decide, and gives an approved call to one
// caller, once.
package approval

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/approval/internal/lifecycle"
	"github.com/sluice-mesh/sluice/services/approval/internal/notice"
	"github.com/sluice-mesh/sluice/services/approval/internal/store"
	"github.com/sluice-mesh/sluice/services/internal/attest"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/config"
	"github.com/sluice-mesh/sluice/services/internal/datadir"
	"github.com/sluice-mesh/sluice/services/internal/sqlstore"
	"github.com/sluice-mesh/sluice/services/internal/turn"
)

const (
	// sweepTime is how often time's moves are made where nobody asks.
	sweepTime = time.Second
	// kept is how long an approval that has ended is kept, and pruneEvery how often
	// older ones are looked for.
	kept       = 30 * 24 * time.Hour
	pruneEvery = time.Hour
	// healthTime bounds asking the store how it is, and countTime how many wait.
	healthTime = time.Second
	countTime  = 5 * time.Second
	// ownersApprove is said at the start where owners may decide.
	ownersApprove = config.OwnersApprove
)

// Deps are the live objects that a [Service] works with. Every field is required.
type Deps struct {
	// Tokens tell who may still decide.
	Tokens *authn.Tokens
	// Policy tells which revision is active, and Verifier what the policy role has
	// signed.
	Policy   policyv1.PolicyServiceClient
	Verifier *attest.Verifier
	// Meter makes metrics, and Tracer spans.
	Meter  metric.Meter
	Tracer trace.Tracer
	Log    *slog.Logger
}

// Service implements approvalv1.ApprovalServiceServer.
type Service struct {
	approvalv1.UnimplementedApprovalServiceServer

	cfg    Config
	tokens *authn.Tokens
	// verdicts are what policy has decided.
	verdicts *verdicts
	log      *slog.Logger
	store    *store.Store
	sender   *notice.Sender
	dir      *datadir.Dir // nil for a store elsewhere
	meters   *meters
	tracer   trace.Tracer
	// reading are turns at calls that come, and drawing at views: both are work on what
	// callers wrote, of up to 4 MiB, and each is the requester's.
	reading, drawing *turn.Turns[string]
	// counting reads metrics off the store; nil until it is open.
	counting metric.Registration
}

// New opens the store and returns a Service, which the caller closes.
func New(ctx context.Context, cfg Config, deps Deps) (*Service, error) {
	if deps.Tokens == nil || deps.Policy == nil || deps.Verifier == nil || deps.Meter == nil || deps.Tracer == nil || deps.Log == nil {
		return nil, errors.New("approval: tokens, the policy role, what it signs, a meter, a tracer and a log are required")
	}
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	s := &Service{cfg: cfg, tokens: deps.Tokens, verdicts: newVerdicts(deps.Policy, deps.Verifier), tracer: deps.Tracer, log: deps.Log, reading: turn.ForProcessor[string](), drawing: turn.ForProcessor[string]()}
	if cfg.OwnerMayApprove {
		s.log.WarnContext(ctx, ownersApprove)
	}
	if err := s.open(ctx, deps.Meter); err != nil {
		return nil, errors.Join(fmt.Errorf("approval: %w", err), s.Close())
	}
	return s, nil
}

func (s *Service) open(ctx context.Context, meter metric.Meter) (err error) {
	if s.meters, err = newMeters(ctx, meter); err != nil {
		return err
	}
	at := store.Config{Source: s.cfg.Source, Channels: s.cfg.Notices.Channels(), Observe: s.meters.changed, Log: s.log}
	if s.cfg.Source == sqlstore.SQLite {
		if s.dir, err = datadir.Open(s.cfg.Data, "approval"); err != nil {
			return err
		}
		at.File = s.dir.Path("approvals.db")
	}
	if s.store, err = store.Open(ctx, at); err != nil {
		return err
	}
	if s.sender, err = notice.New(s.cfg.Notices, notice.Deps{Store: s.store, Draw: s.noticed, Vote: s.pressed, Log: s.log}); err != nil {
		return err
	}
	s.counting, err = meter.RegisterCallback(s.countOpen, s.meters.open)
	return err
}

// Register implements rpc.Service.
func (s *Service) Register(r grpc.ServiceRegistrar) {
	approvalv1.RegisterApprovalServiceServer(r, s)
}

// Run makes the moves that time makes, forgets what is old, and tells people, until
// ctx ends.
func (s *Service) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { s.sweep(ctx); return nil })
	group.Go(func() error { return s.sender.Run(ctx) })
	group.Go(func() error { s.verdicts.revisions.watch(ctx); return nil })
	return group.Wait()
}

// sweep makes the moves that time makes where nobody asks, and forgets what is old.
func (s *Service) sweep(ctx context.Context) {
	tick := time.NewTicker(sweepTime)
	defer tick.Stop()
	var pruned time.Time
	for {
		do := nothing
		if time.Since(pruned) > pruneEvery {
			do, pruned = prune, time.Now()
		}
		if err := s.store.Do(ctx, do); err != nil && ctx.Err() == nil {
			s.log.WarnContext(ctx, "approvals that are due were not moved", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func prune(ctx context.Context, tx *store.Tx) error {
	if _, err := tx.Prune(ctx, tx.Now.Add(-kept)); err != nil {
		return err
	}
	return tx.ForgetAsked(ctx, tx.Now.Add(-config.MaxAskedWindow)) // the window may be made longer
}

// nothing leaves to a transaction what it does by itself.
func nothing(context.Context, *store.Tx) error { return nil }

// Health implements rpc.HealthChecker.
func (s *Service) Health(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, healthTime)
	defer cancel()
	return errors.Join(s.verdicts.revisions.seen(), s.store.Look(ctx, nothing))
}

// Close closes the store.
func (s *Service) Close() error {
	var errs []error
	if s.counting != nil {
		errs = append(errs, s.counting.Unregister()) // what is exported last must not ask a closed store
	}
	if s.store != nil {
		errs = append(errs, s.store.Close())
	}
	if s.dir != nil {
		errs = append(errs, s.dir.Close())
	}
	return errors.Join(errs...)
}

// countOpen tells metrics how many approvals are open. It returns no error, for one
// would keep back every metric of the process.
func (s *Service) countOpen(ctx context.Context, o metric.Observer) error {
	ctx, cancel := context.WithTimeout(ctx, countTime)
	defer cancel()
	var counts map[approvalv1.ApprovalState]int64
	err := s.store.Look(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		counts, err = tx.CountOpen(ctx)
		return err
	})
	if err != nil {
		s.log.WarnContext(ctx, "open approvals were not counted", "error", err)
		return nil
	}
	s.meters.observe(o, counts)
	return nil
}

func (s *Service) times() lifecycle.Times {
	return lifecycle.Times{Decide: s.cfg.Decide, Execute: s.cfg.Execute}
}
