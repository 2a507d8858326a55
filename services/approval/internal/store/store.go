// Package store keeps approvals in SQLite or PostgreSQL. Every change is one
// serializable transaction, at whose start all that time has moved is moved, so
// that a time which has passed counts at once; what was acknowledged is there
// after a crash.
package store

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"sync"
	"time"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/internal/canonical"
	"github.com/sluice-mesh/sluice/services/internal/sqlstore"
)

//go:embed migrations/*.sql
var files embed.FS

// ErrNotFound means that there is no such approval.
var ErrNotFound = errors.New("no such approval")

// Config says where approvals are kept.
type Config struct {
	// Source is `sqlite` or the URL of a PostgreSQL database, and File the path of
	// SQLite's file.
	Source, File string
	// Channels are those that notices are made for; each has another name.
	Channels []Channel
	// Observe takes what a transaction changed, after it was committed, once; required.
	Observe func(context.Context, Changes)
	// Log takes what migrations do; required.
	Log *slog.Logger
	// Now is SQLite's clock, for tests; nil means time.Now.
	Now func() time.Time
}

// Store is an open store. It is safe for concurrent use.
type Store struct {
	db       *sqlstore.DB
	channels []Channel
	observe  func(context.Context, Changes)

	mu    sync.Mutex
	moved chan struct{} // closed at the next move that this process makes
}

// Open opens a store, whose tables it makes or brings up to date. The caller
// closes it.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	if cfg.Observe == nil {
		return nil, errors.New("store: somebody must observe")
	}
	migrations, err := fs.Sub(files, "migrations")
	if err != nil {
		return nil, err
	}
	db, err := sqlstore.Open(ctx, sqlstore.Config{Name: "approval", Marker: "moved approvals pending claims moves", Source: cfg.Source, File: cfg.File, Migrations: migrations, Log: cfg.Log, Now: cfg.Now, Queue: "moved"})
	if err != nil {
		return nil, err
	}
	return &Store{db: db, channels: cfg.Channels, observe: cfg.Observe, moved: make(chan struct{})}, nil
}

// Close closes the store.
func (s *Store) Close() error { return s.db.Close() }

// Do runs fn in one transaction, in its turn, in which nothing is due any more; where
// much is due, transactions before it have moved that. It may run fn again, so fn must
// use nothing but its transaction. Errors are fn's own and [sqlstore.ErrAway].
func (s *Store) Do(ctx context.Context, fn func(ctx context.Context, tx *Tx) error) error {
	return s.do(ctx, s.db.Do, fn)
}

// Look is Do for a fn that changes nothing, which waits for nobody.
func (s *Store) Look(ctx context.Context, fn func(ctx context.Context, tx *Tx) error) error {
	return s.do(ctx, s.db.Look, fn)
}

func (s *Store) do(ctx context.Context, run transact, fn work) error {
	for {
		if ran, err := s.try(ctx, run, fn); ran || err != nil {
			return err
		}
	}
}

// work is what is done in a transaction, and transact how one is made: one of
// [sqlstore.DB]'s methods.
type work func(ctx context.Context, tx *Tx) error
type transact func(context.Context, func(context.Context, *sqlstore.Tx) error) error

// try moves what is due in one transaction, and runs fn in it where that was little. It
// reports whether fn ran.
func (s *Store) try(ctx context.Context, run transact, fn work) (ran bool, err error) {
	var last *Tx // the one that was committed
	err = run(ctx, func(ctx context.Context, inner *sqlstore.Tx) error {
		last = &Tx{inner: inner, Now: inner.Now, channels: s.channels}
		more, err := last.lapse(ctx)
		ran = !more
		if more || err != nil {
			return err
		}
		return fn(ctx, last)
	})
	if err != nil {
		return ran, err
	}
	if last.changed {
		// gofail: var approvalAfterCommit struct{}
		s.wake()
	}
	s.observe(ctx, last.changes)
	return ran, nil
}

// Moved returns a channel that is closed when this process moves an approval. What
// other processes move it does not tell.
func (s *Store) Moved() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.moved
}

func (s *Store) wake() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.moved)
	s.moved = make(chan struct{})
}

// Tx is a transaction. Its records belong to whoever got them.
type Tx struct {
	// Now is the store's clock.
	Now time.Time

	inner    *sqlstore.Tx
	channels []Channel
	changed  bool
	changes  Changes
}

// lapseAtOnce is how many approvals that are due move in one transaction: each may be
// large, and whoever calls has no time for all.
const lapseAtOnce = 8

// lapse moves what is due, and reports whether there may be more.
func (t *Tx) lapse(ctx context.Context) (more bool, err error) {
	records, err := t.query(ctx, "due > 0 AND due <= $1 ORDER BY due LIMIT $2", sqlstore.Micros(t.Now), lapseAtOnce)
	if err != nil {
		return false, fmt.Errorf("read what is due: %w", err)
	}
	for _, r := range records {
		r.Lapse(t.Now)
		if err := t.Save(ctx, r); err != nil {
			return false, err
		}
	}
	return len(records) == lapseAtOnce, nil
}

// Who is a principal as far as pending calls are counted: tenant, subject, agent.
func Who(p *identityv1.Principal) []byte { return hash(p.GetTenant(), p.GetSubject(), p.GetAgent()) }

// Asker is a requester with its chain, as approvals are bound to them.
func Asker(p *identityv1.Principal) []byte {
	words := []string{p.GetTenant(), p.GetSubject(), p.GetAgent()}
	for _, of := range p.GetChain() {
		words = append(words, of.GetTenant(), of.GetSubject(), of.GetAgent())
	}
	return hash(words...)
}

// hash joins words so that no two lists of them are the same.
func hash(words ...string) []byte {
	sum := canonical.Sum(words...)
	return sum[:]
}
