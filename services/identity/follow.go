package identity

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sluice-mesh/sluice/services/identity/internal/store"
	"github.com/sluice-mesh/sluice/services/internal/sqlstore"
)

const (
	// pollInterval is the interval at which the store is read if other processes can change it.
	pollInterval = 400 * time.Millisecond
	readTimeout  = 2 * time.Second
	// defaultMaxStoreAge applies if the configuration has no maximum age.
	defaultMaxStoreAge = 30 * time.Second
)

// errStale means that the last successful read of the store is too old. Other replicas may have revoked tokens since
// then.
var errStale = errors.New("the store of the tokens is unavailable, so no token is confirmed")

// isFresh reports whether the store was read recently enough. A SQLite store is always fresh, because no other process
// uses it.
func (s *Service) isFresh() bool {
	if s.cfg.Source == sqlstore.SQLite {
		return true
	}
	read, now := s.lastRead.Load(), time.Now()
	if read == nil {
		return false
	}
	// The monotonic clock can stop while the machine sleeps, so the ages by both clocks are compared.
	age := max(now.Sub(*read), now.Round(0).Sub(read.Round(0)))
	return age <= s.maxStoreAge()
}

func (s *Service) maxStoreAge() time.Duration { return cmp.Or(s.cfg.MaxStoreAge, defaultMaxStoreAge) }

// follow reads the tokens that other replicas change. It also reports to the other replicas which version of the tokens
// all watchers of this replica use.
func (s *Service) follow(ctx context.Context) error {
	if s.cfg.Source == sqlstore.SQLite {
		return nil
	}
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	away := false
	for {
		select {
		case <-ctx.Done():
			stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), readTimeout)
			defer cancel()
			// Without this call, revocations at other replicas would wait longer for this replica.
			_ = s.store.LeaveReplica(stopping, s.replica, s.maxStoreAge())
			return nil
		case <-tick.C:
		}
		reading, cancel := context.WithTimeout(ctx, readTimeout)
		began := time.Now()
		err := errors.Join(s.readTokens(reading), s.store.ReportReplica(reading, s.replica, s.confirmed.Load()))
		cancel()
		if err == nil { // the tokens are in use, and the other replicas can see this one
			s.lastRead.Store(&began)
		}
		if err != nil && !away && ctx.Err() == nil {
			s.deps.Log.WarnContext(ctx, "the store of the tokens could not be read; the tokens that were read last stay in use", "error", err)
		}
		if err == nil && away {
			s.deps.Log.InfoContext(ctx, "the store of the tokens is available again")
		}
		away = err != nil
	}
}

// confirmOwn confirms the tokens of this process at regular intervals. In one process, all services share these tokens.
// Services in other processes confirm their tokens when they receive a message from this service.
func (s *Service) confirmOwn(ctx context.Context) error {
	if s.cfg.Source == sqlstore.SQLite {
		return nil
	}
	tick := time.NewTicker(heartbeatInterval)
	defer tick.Stop()
	for {
		if s.isFresh() {
			s.deps.Tokens.Confirm()
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// readTokens reads the stored tokens if they have changed, and makes them valid.
func (s *Service) readTokens(ctx context.Context) error {
	set, err := s.store.TokensSince(ctx, s.tokens.version())
	if err == nil {
		err = s.publish(set)
	}
	if err != nil {
		return fmt.Errorf("read the tokens: %w", err)
	}
	return nil
}

// publish makes stored tokens valid, unless a newer version of the tokens is already valid.
func (s *Service) publish(set store.TokenSet) error {
	_, err := s.tokens.store(set)
	return err
}
