// Package identity serves sluice.identity.v1. It stores tokens, fetches the keys of issuers, and tells the other
// services which credentials are valid.
package identity

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/metric"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/singleflight"
	"google.golang.org/grpc"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/identity/internal/seal"
	"github.com/sluice-mesh/sluice/services/identity/internal/store"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/datadir"
	"github.com/sluice-mesh/sluice/services/internal/sqlstore"
)

// Deps contains the dependencies of a [Service]. All fields except Reload and Transport are required.
type Deps struct {
	// Tokens receives the configured tokens and the stored tokens.
	Tokens *authn.Tokens
	// Policy exports the tokens that earlier versions of the policy service stored.
	Policy policyv1.PolicyServiceClient
	// Meter creates the metrics.
	Meter metric.Meter
	// Log receives messages for operators.
	Log *slog.Logger
	// Reload reads the tokens, groups and issuers of the configuration again. If Reload is nil, they don't change.
	Reload func() (Identities, error)
	// Transport sends the requests to the servers at which the mesh signs in, and to their authorization servers. Tests set
	// it. If Transport is nil, the requests are sent over the network, and the addresses are checked.
	Transport http.RoundTripper
}

func (d *Deps) check() error {
	if d.Tokens == nil || d.Policy == nil || d.Meter == nil || d.Log == nil {
		return errors.New("identity: every dependency is required")
	}
	return nil
}

// Service implements identityv1.IdentityServiceServer. It is safe for concurrent use.
type Service struct {
	identityv1.UnimplementedIdentityServiceServer

	cfg     Config
	deps    Deps
	metrics *metrics
	tokens  *tokenBook
	store   *store.Store
	dir     *datadir.Dir // nil if the store is PostgreSQL
	// watchers contains the services that receive the tokens.
	watchers watchers
	// replica is a random string that is generated when the process starts. began is the time of the start. confirmed is
	// the newest version of the stored tokens that all watchers use.
	replica   string
	began     time.Time
	confirmed atomic.Int64
	// lastRead is the time at which the last successful read of the store began. It is nil until the first read.
	lastRead atomic.Pointer[time.Time]
	// sealKey returns the key that encrypts the tokens of connections. It creates the key if it does not exist. It returns
	// [errNoSealKey] if the store is PostgreSQL and no key is configured. refreshes combines concurrent requests for an
	// access token. refreshing counts the requests that use a refresh token.
	sealKey    func() (*seal.Key, error)
	refreshes  singleflight.Group
	refreshing inFlight
	// metadata contains the metadata of issuers. limits limits the work for callers without a credential.
	metadata metadataCache
	limits   *signInLimits
	// starts limits the sign-ins at servers that people start.
	starts *startLimits
}

// New opens the store and returns a Service, which the caller must close. The tokens are valid after [Service.Run] has
// read the store.
func New(ctx context.Context, cfg Config, deps Deps) (_ *Service, err error) {
	if err := errors.Join(deps.check(), cfg.Validate()); err != nil {
		return nil, err
	}
	s := &Service{cfg: cfg, deps: deps, replica: rand.Text(), began: time.Now(), starts: newStartLimits(), sealKey: sync.OnceValues(cfg.sealKey)}
	s.tokens = newTokenBook(deps.Tokens, cfg.Identities, s.fetchKeys)
	if err := s.tokens.check(); err != nil {
		return nil, fmt.Errorf("identity: auth.tokens: %w", err)
	}
	if s.limits, err = newSignInLimits(); err != nil {
		return nil, err
	}
	if s.metrics, err = newMetrics(deps.Meter, s.tokens); err != nil {
		return nil, err
	}
	if err := s.open(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	if err := s.metrics.observeConnections(deps.Meter, connections{Service: s}.countStates); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// open opens the store. If the tokens of the policy service were imported earlier, open makes the stored tokens valid.
func (s *Service) open(ctx context.Context) (err error) {
	at := store.Config{Source: s.cfg.Source, Log: s.deps.Log}
	if s.cfg.Source == sqlstore.SQLite {
		if s.dir, err = datadir.Open(s.cfg.Data, "identity"); err != nil {
			return err
		}
		at.File = s.dir.Path("identity.db")
	}
	if s.store, err = store.Open(ctx, at); err != nil {
		return err
	}
	if len(s.cfg.Servers) > 0 {
		if _, err := s.sealKey(); err != nil {
			return fmt.Errorf("identity: %w", err)
		}
	}
	state, err := s.store.ImportState(ctx)
	if err != nil || state == store.NotImported {
		return err
	}
	return s.firstRead(ctx)
}

// Close waits until the new tokens of refreshes in flight are stored, but not longer than closeTimeout. Otherwise, a
// refresh token that can be used only once would be lost. Then it closes the store.
func (s *Service) Close() error {
	var errs []error
	if !s.refreshing.close(closeTimeout) {
		errs = append(errs, fmt.Errorf("identity: the refresh of an access token has not ended within %v: if its authorization server does not accept the old refresh token, an operator has to connect the server again", closeTimeout))
	}
	if s.metrics != nil {
		errs = append(errs, s.metrics.close())
	}
	if s.store != nil {
		errs = append(errs, s.store.Close())
	}
	if s.dir != nil {
		errs = append(errs, s.dir.Close())
	}
	return errors.Join(errs...)
}

// Run reads changes of the tokens by other processes, changes of the configuration, and the keys of issuers. It returns
// when ctx is done.
func (s *Service) Run(ctx context.Context) error {
	if s.importTokens(ctx); ctx.Err() != nil {
		return nil //nolint:nilerr // the service was stopped
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return s.watchConfiguration(ctx) })
	group.Go(func() error { return s.follow(ctx) })
	group.Go(func() error { return s.confirm(ctx) })
	group.Go(func() error { return s.confirmOwn(ctx) })
	group.Go(func() error { s.finishImport(ctx); return nil })
	group.Go(func() error { return s.recordUses(ctx) })
	group.Go(func() error { return s.tokens.keys.Run(ctx) })
	return group.Wait()
}

// Register implements rpc.Service.
func (s *Service) Register(r grpc.ServiceRegistrar) {
	identityv1.RegisterIdentityServiceServer(r, s)
	identityv1.RegisterSessionServiceServer(r, sessions{Service: s})
	identityv1.RegisterConnectionServiceServer(r, connections{Service: s})
}

// Health implements rpc.HealthChecker.
func (s *Service) Health(context.Context) error {
	switch {
	case s.tokens.published.Load() == nil:
		return errNotImported
	case !s.isFresh():
		return errStale
	default:
		return nil
	}
}
