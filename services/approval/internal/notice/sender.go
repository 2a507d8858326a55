package notice

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	"github.com/sluice-mesh/sluice/services/approval/internal/store"
)

const (
	// pollInterval is the interval at which a channel reads due notices. Polling is necessary because other processes can
	// write notices, and because notices become due again after a pause.
	pollInterval = time.Second
	// batchSize limits how many notices a channel sends concurrently.
	batchSize = 16
	// sendTimeout limits how long one attempt to send a notice takes. lease is how long a process has the exclusive right
	// to send a notice.
	sendTimeout = 15 * time.Second
	lease       = time.Minute
	// storeTimeout limits how long it takes to store the result of an attempt.
	storeTimeout = 5 * time.Second
	// firstPause is the maximum pause after the first failed attempt. The maximum doubles with each further failure, up
	// to lastPause.
	firstPause = time.Second
	lastPause  = 10 * time.Minute
	// giveUpAfter is how long a channel retries a notice. retention is how long the store keeps a notice after it was sent
	// or dropped.
	giveUpAfter    = 24 * time.Hour
	retention      = 30 * 24 * time.Hour
	deleteInterval = time.Hour
)

// ErrObsolete means that the notice is no longer relevant. Use errors.Is to test for it.
var ErrObsolete = errors.New("the notice is no longer relevant")

// Message is a notice to send.
type Message struct {
	*store.Notice
	// View is what a person must see before voting. If a view has several parts, View is the first part. View is nil if
	// the notice does not ask for a vote, or if the vote is no longer needed.
	View *approvalv1.View
}

// Channel sends notices by one means, such as mail. It is safe for concurrent use.
type Channel interface {
	// Send sends a notice and returns a receipt, which may be empty. Later notices of the same approval contain the
	// receipt. Send returns [ErrObsolete] if the notice is no longer relevant. No error contains a secret.
	Send(ctx context.Context, m *Message) (receipt string, err error)
}

type listener interface{ listen(ctx context.Context) }

// Deps are the dependencies of a [Sender]. Every field is required.
type Deps struct {
	// Store must have been opened with the channels of the configuration.
	Store *store.Store
	// Draw returns the view of an approval, or the first part of the view if it has several parts. It returns nil if the
	// approval no longer needs the decision that the notice requests. Draw may be slow, so it is called outside
	// transactions.
	Draw func(ctx context.Context, asked *approvalv1.Approval) (*approvalv1.View, error)
	// Vote casts the vote of a person who pressed a button.
	Vote Voter
	Log  *slog.Logger
}

// Sender sends the notices of the outbox.
type Sender struct {
	deps     Deps
	channels map[string]Channel
}

// New returns a Sender for the channels of a configuration.
func New(cfg Config, deps Deps) (*Sender, error) {
	if deps.Store == nil || deps.Draw == nil || deps.Vote == nil || deps.Log == nil {
		return nil, errors.New("notices: a store, views, votes and a log are required")
	}
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	s := &Sender{deps: deps, channels: make(map[string]Channel)}
	for _, w := range cfg.channelConfigs() {
		c, err := w.open(deps)
		if err != nil {
			return nil, fmt.Errorf("notices: %s: %w", w.target().Name, err)
		}
		s.channels[w.target().Name] = c
	}
	return s, nil
}

// Run sends notices until ctx is done. If Run stops before it has stored the result of an attempt, the next process
// sends the notice again.
func (s *Sender) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	for name, c := range s.channels {
		group.Go(func() error { s.sendNotices(ctx, name, c); return nil })
		if l, ok := c.(listener); ok {
			group.Go(func() error { l.listen(ctx); return nil })
		}
	}
	group.Go(func() error { s.deleteOld(ctx); return nil })
	return group.Wait()
}

func (s *Sender) sendNotices(ctx context.Context, name string, c Channel) {
	for ctx.Err() == nil {
		moved := s.deps.Store.Moved()
		if s.sendDue(ctx, name, c) {
			continue
		}
		select {
		case <-ctx.Done():
		case <-moved:
		case <-time.After(pollInterval):
		}
	}
}

// sendDue sends one batch of due notices, and reports whether more may be due.
func (s *Sender) sendDue(ctx context.Context, name string, c Channel) bool {
	var messages []*Message
	err := s.deps.Store.Do(ctx, func(ctx context.Context, tx *store.Tx) error {
		messages = nil
		notices, err := tx.LeaseNotices(ctx, name, lease, batchSize)
		if err != nil {
			return err
		}
		for _, n := range notices {
			messages = append(messages, &Message{Notice: n})
		}
		return nil
	})
	if err != nil {
		if ctx.Err() == nil {
			s.deps.Log.WarnContext(ctx, "the due notices of a channel were not read from the store; they are read again in a second", "channel", name, "error", err)
		}
		return false
	}
	var sent sync.WaitGroup
	for _, m := range messages {
		sent.Go(func() { s.send(ctx, c, m) })
	}
	sent.Wait()
	return len(messages) == batchSize
}

// send makes one attempt to send a notice and stores the result of the attempt.
func (s *Sender) send(ctx context.Context, c Channel, m *Message) {
	receipt, err := s.attempt(ctx, c, m)
	if err != nil && ctx.Err() != nil {
		return // the result is unknown, so the notice is sent again when its lease has expired
	}
	log := s.deps.Log.With("channel", m.Channel, "notice", m.ID, "attempt", m.Attempt)
	how := store.Sent
	switch {
	case errors.Is(err, ErrObsolete):
		how = store.Obsolete
	case err != nil:
		how = store.GivenUp
		log.WarnContext(ctx, "an attempt to send a notice failed", "error", err)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeTimeout)
	defer cancel()
	var lately int
	err = s.deps.Store.Do(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		lately = 0
		if how == store.GivenUp && tx.Now.Sub(m.Due) < giveUpAfter {
			return tx.RetryNotice(ctx, m.Notice, retryPause(m.Attempt))
		}
		if err := tx.EndNotice(ctx, m.Notice, how, receipt); err != nil || how != store.GivenUp {
			return err
		}
		lately, err = tx.CountNotices(ctx, m.Channel, store.GivenUp)
		return err
	})
	switch {
	case err != nil:
		log.WarnContext(ctx, "the result of sending a notice was not stored; the notice is sent again", "error", err)
	case lately > 0:
		log.ErrorContext(ctx, "a notice was given up after a day of failures; check the channel's configuration and its server", "given_up_lately", lately)
	}
}

func (s *Sender) attempt(ctx context.Context, c Channel, m *Message) (receipt string, err error) {
	ctx, cancel := context.WithTimeout(ctx, sendTimeout)
	defer cancel()
	if m.Kind == store.Pending || m.Kind == store.Escalated {
		if m.View, err = s.deps.Draw(ctx, m.Approval); err != nil {
			return "", err // the notice is retried later
		}
	}
	if m.Kind == store.Escalated && m.View == nil {
		return "", ErrObsolete
	}
	return c.Send(ctx, m)
}

// retryPause returns the pause before the next attempt. attempt is the number of the failed attempt, starting at 1. The
// pause is random, between half of a maximum and the maximum. The maximum grows exponentially.
func retryPause(attempt int64) time.Duration {
	most := lastPause
	if n := attempt - 1; n < 20 { // a larger shift would overflow
		most = min(firstPause<<max(n, 0), lastPause)
	}
	return most/2 + rand.N(most/2) //nolint:gosec // the random number is not a secret
}

func (s *Sender) deleteOld(ctx context.Context) {
	tick := time.NewTicker(deleteInterval)
	defer tick.Stop()
	for {
		err := s.deps.Store.Do(ctx, func(ctx context.Context, tx *store.Tx) error { return tx.DeleteOldNotices(ctx, retention) })
		if err != nil && ctx.Err() == nil {
			s.deps.Log.WarnContext(ctx, "old notices were not deleted; the service tries again in an hour", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
