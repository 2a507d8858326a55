// Package approval serves sluice.approval.v1. It stores the calls that wait for a person's approval, counts the votes
// of operators and approvers, and ensures that each approved call is claimed only once, by one caller.
//
// A transition is a change to an approval that is recorded in its history, such as a vote, or the change from pending
// to approved. Some transitions become due when a deadline passes, such as the change from pending to expired.
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
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/config"
	"github.com/sluice-mesh/sluice/services/internal/datadir"
	"github.com/sluice-mesh/sluice/services/internal/fairqueue"
	"github.com/sluice-mesh/sluice/services/internal/signeddecision"
	"github.com/sluice-mesh/sluice/services/internal/sqlstore"
)

const (
	// sweepInterval is the interval at which the service applies the state transitions whose deadlines have passed.
	sweepInterval = time.Second
	// retention is how long the store keeps an approval after the approval has ended. pruneInterval is the interval at
	// which the service deletes older approvals.
	retention     = 30 * 24 * time.Hour
	pruneInterval = time.Hour
	// healthTimeout limits how long a health check of the store takes. countTimeout limits how long counting the open
	// approvals takes.
	healthTimeout = time.Second
	countTimeout  = 5 * time.Second
	// ownersApproveWarning is the warning that New logs if owners of agents may approve or deny their own agents'
	// calls.
	ownersApproveWarning = config.OwnerMayApproveWarning
)

// Deps are the dependencies of a [Service]. Every field is required.
type Deps struct {
	// Tokens contains the principals whose votes count.
	Tokens *authn.Tokens
	// Policy is the client that receives the active policy revision. Verifier checks the signatures of the policy service.
	Policy   policyv1.PolicyServiceClient
	Verifier *signeddecision.Verifier
	// Meter creates the metrics, and Tracer creates the spans.
	Meter  metric.Meter
	Tracer trace.Tracer
	Log    *slog.Logger
}

// Service implements approvalv1.ApprovalServiceServer.
type Service struct {
	approvalv1.UnimplementedApprovalServiceServer

	cfg       Config
	tokens    *authn.Tokens
	decisions *decisionVerifier
	log       *slog.Logger
	store     *store.Store
	sender    *notice.Sender
	dir       *datadir.Dir // nil if the store is outside the data directory
	metrics   *metrics
	tracer    trace.Tracer
	// readTurns limits the processor time for parsing calls, and drawTurns limits the processor time for rendering
	// views. A call may be as large as 4 MiB, so both queues share the time fairly between the requesters.
	readTurns, drawTurns *fairqueue.Queue[string]
	// gaugeRegistration is the registration of the callback [Service.countOpen]. It is nil until the store is open.
	gaugeRegistration metric.Registration
}

// New opens the store and returns a Service. The caller must close the Service.
func New(ctx context.Context, cfg Config, deps Deps) (*Service, error) {
	if deps.Tokens == nil || deps.Policy == nil || deps.Verifier == nil || deps.Meter == nil || deps.Tracer == nil || deps.Log == nil {
		return nil, errors.New("approval: tokens, a policy client, a verifier, a meter, a tracer and a log are required")
	}
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	s := &Service{cfg: cfg, tokens: deps.Tokens, decisions: newDecisionVerifier(deps.Policy, deps.Verifier), tracer: deps.Tracer, log: deps.Log, readTurns: fairqueue.NewForProcessor[string](), drawTurns: fairqueue.NewForProcessor[string]()}
	if cfg.OwnerMayApprove {
		s.log.WarnContext(ctx, ownersApproveWarning)
	}
	if err := s.open(ctx, deps.Meter); err != nil {
		return nil, errors.Join(fmt.Errorf("approval: %w", err), s.Close())
	}
	return s, nil
}

func (s *Service) open(ctx context.Context, meter metric.Meter) (err error) {
	if s.metrics, err = newMetrics(ctx, meter); err != nil {
		return err
	}
	at := store.Config{Source: s.cfg.Source, Channels: s.cfg.Notices.Channels(), Observe: s.metrics.countChanges, Log: s.log}
	if s.cfg.Source == sqlstore.SQLite {
		if s.dir, err = datadir.Open(s.cfg.Data, "approval"); err != nil {
			return err
		}
		at.File = s.dir.Path("approvals.db")
	}
	if s.store, err = store.Open(ctx, at); err != nil {
		return err
	}
	if s.sender, err = notice.New(s.cfg.Notices, notice.Deps{Store: s.store, Draw: s.viewForNotice, Vote: s.voteFromSlack, Log: s.log}); err != nil {
		return err
	}
	s.gaugeRegistration, err = meter.RegisterCallback(s.countOpen, s.metrics.open)
	return err
}

// Register implements rpc.Service.
func (s *Service) Register(r grpc.ServiceRegistrar) {
	approvalv1.RegisterApprovalServiceServer(r, s)
}

// Run applies the state transitions that are due, deletes old approvals, sends notices and watches the active policy
// revision. It returns when ctx is done.
func (s *Service) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { s.sweep(ctx); return nil })
	group.Go(func() error { return s.sender.Run(ctx) })
	group.Go(func() error { s.decisions.revisions.watch(ctx); return nil })
	return group.Wait()
}

// sweep applies the state transitions that are due, and deletes old approvals, until ctx is done.
func (s *Service) sweep(ctx context.Context) {
	tick := time.NewTicker(sweepInterval)
	defer tick.Stop()
	var pruned time.Time
	for {
		do := doNothing
		if time.Since(pruned) > pruneInterval {
			do, pruned = prune, time.Now()
		}
		if err := s.store.Do(ctx, do); err != nil && ctx.Err() == nil {
			s.log.WarnContext(ctx, "the due approvals were not updated; the service tries again in a second", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func prune(ctx context.Context, tx *store.Tx) error {
	if _, err := tx.Prune(ctx, tx.Now.Add(-retention)); err != nil {
		return err
	}
	return tx.DeleteRequestCounts(ctx, tx.Now.Add(-config.MaxAskedWindow)) // the operator may later configure a longer window
}

// doNothing is passed to transactions that only apply the state transitions that are due. A transaction applies these
// transitions before it calls its function.
func doNothing(context.Context, *store.Tx) error { return nil }

// Health implements rpc.HealthChecker.
func (s *Service) Health(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, healthTimeout)
	defer cancel()
	return errors.Join(s.decisions.revisions.checkReady(), s.store.Look(ctx, doNothing))
}

// Close closes the store and the data directory.
func (s *Service) Close() error {
	var errs []error
	if s.gaugeRegistration != nil {
		errs = append(errs, s.gaugeRegistration.Unregister()) // otherwise the last export of the metrics would read a closed store
	}
	if s.store != nil {
		errs = append(errs, s.store.Close())
	}
	if s.dir != nil {
		errs = append(errs, s.dir.Close())
	}
	return errors.Join(errs...)
}

// countOpen reports the number of open approvals to the metrics. If the store can't be read, countOpen logs the error
// and returns nil, because a returned error would suppress every metric of the process.
func (s *Service) countOpen(ctx context.Context, o metric.Observer) error {
	ctx, cancel := context.WithTimeout(ctx, countTimeout)
	defer cancel()
	var counts map[approvalv1.ApprovalState]int64
	err := s.store.Look(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		counts, err = tx.CountOpen(ctx)
		return err
	})
	if err != nil {
		s.log.WarnContext(ctx, "the open approvals were not counted; they are counted again at the next export", "error", err)
		return nil
	}
	s.metrics.observeOpen(o, counts)
	return nil
}

// Busy implements [app.Busier]. The service is busy while approvals are open, because the process must run to notify
// people of these approvals.
func (s *Service) Busy(ctx context.Context) (string, error) {
	var counts map[approvalv1.ApprovalState]int64
	err := s.store.Look(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		counts, err = tx.CountOpen(ctx)
		return err
	})
	if err != nil {
		return "", fmt.Errorf("count the open approvals: %w", err)
	}
	n := int64(0)
	for _, count := range counts {
		n += count
	}
	if n == 0 {
		return "", nil
	}
	return fmt.Sprintf("%d open approval(s)", n), nil
}

func (s *Service) defaultTimes() lifecycle.Times {
	return lifecycle.Times{Decide: s.cfg.Decide, Execute: s.cfg.Execute}
}
