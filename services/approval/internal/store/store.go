// Package store stores approvals in SQLite or PostgreSQL. Each change is one serializable transaction. A transaction
// first makes the state transitions whose deadlines have passed. Therefore, no transaction can read an approval as
// valid after its deadline. A committed change survives a crash.
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
	"github.com/sluice-mesh/sluice/services/internal/canonicaljson"
	"github.com/sluice-mesh/sluice/services/internal/principal"
	"github.com/sluice-mesh/sluice/services/internal/sqlstore"
)

//go:embed migrations/*.sql
var files embed.FS

// ErrNotFound means that the approval does not exist.
var ErrNotFound = errors.New("no such approval")

// Config configures a store.
type Config struct {
	// Source is `sqlite` or the URL of a PostgreSQL database. File is the path of the SQLite file.
	Source, File string
	// Channels are the channels for which the store writes notices. Their names must be unique.
	Channels []Channel
	// Observe is called after each committed transaction with the changes that the transaction made. It is required.
	Observe func(context.Context, Changes)
	// Log receives messages about migrations. It is required.
	Log *slog.Logger
	// Now is the clock for SQLite. If it is nil, [time.Now] is used. Only tests set it.
	Now func() time.Time
}

// Store is an open store. It is safe for concurrent use.
type Store struct {
	db       *sqlstore.DB
	channels []Channel
	observe  func(context.Context, Changes)

	mu    sync.Mutex
	moved chan struct{} // closed at the next transition that this process records
}

// Open opens a store and creates or migrates its tables. The caller must close the store.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	if cfg.Observe == nil {
		return nil, errors.New("store: Observe is required")
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

// Do makes the state transitions that are due, and then runs fn in the same transaction. If many transitions are due,
// Do makes some of them in separate transactions first. Concurrent calls to Do run one after the other. Do may run fn
// several times, so fn must have no effect outside its transaction. Do returns the error of fn, or
// [sqlstore.ErrUnavailable].
func (s *Store) Do(ctx context.Context, fn func(ctx context.Context, tx *Tx) error) error {
	return s.do(ctx, s.db.Do, fn)
}

// Look is like [Store.Do], but does not wait for other transactions. fn must not change data.
func (s *Store) Look(ctx context.Context, fn func(ctx context.Context, tx *Tx) error) error {
	return s.do(ctx, s.db.DoUnqueued, fn)
}

func (s *Store) do(ctx context.Context, run transact, fn work) error {
	for {
		if ran, err := s.runOnce(ctx, run, fn); ran || err != nil {
			return err
		}
	}
}

// work is a function that runs in a transaction. transact is a method of [sqlstore.DB] that runs a transaction.
type work func(ctx context.Context, tx *Tx) error
type transact func(context.Context, func(context.Context, *sqlstore.Tx) error) error

// runOnce applies at most dueBatchSize of the due transitions in one transaction. If no other transitions are due, it
// runs fn in the same transaction. It reports whether it has run fn.
func (s *Store) runOnce(ctx context.Context, run transact, fn work) (ran bool, err error) {
	var last *Tx // the last attempt, which is the attempt that is committed
	err = run(ctx, func(ctx context.Context, inner *sqlstore.Tx) error {
		last = &Tx{inner: inner, Now: inner.Now, channels: s.channels}
		more, err := last.applyDue(ctx)
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
		s.notifyMoved()
	}
	s.observe(ctx, last.changes)
	return ran, nil
}

// Moved returns a channel that is closed when this process records a transition of an approval. Transitions that other
// processes record do not close the channel.
func (s *Store) Moved() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.moved
}

func (s *Store) notifyMoved() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.moved)
	s.moved = make(chan struct{})
}

// Tx is a transaction. The caller may change the records that a Tx returns.
type Tx struct {
	// Now is the time of the transaction on the store's clock.
	Now time.Time

	inner    *sqlstore.Tx
	channels []Channel
	changed  bool
	changes  Changes
}

// dueBatchSize is the maximum number of approvals for which one transaction applies the due transitions. The number is
// small because approvals may be large and callers wait for the transaction.
const dueBatchSize = 8

// applyDue applies one batch of due transitions, and reports whether more may be due.
func (t *Tx) applyDue(ctx context.Context) (more bool, err error) {
	records, err := t.query(ctx, "due > 0 AND due <= $1 ORDER BY due LIMIT $2", sqlstore.Micros(t.Now), dueBatchSize)
	if err != nil {
		return false, fmt.Errorf("read what is due: %w", err)
	}
	for _, r := range records {
		r.ApplyDue(t.Now)
		if err := t.Save(ctx, r); err != nil {
			return false, err
		}
	}
	return len(records) == dueBatchSize, nil
}

// PrincipalDigest returns a digest of the principal's tenant, subject and agent. The store counts a principal's pending
// calls by this digest.
func PrincipalDigest(p *identityv1.Principal) []byte {
	return hash(p.GetTenant(), p.GetSubject(), p.GetAgent())
}

// requesterFormat is the first word of the digest of a requester with a person. No tenant contains a colon, so such a
// digest differs from all digests of requesters without a person, which have no version.
const requesterFormat = "requester:2"

// RequesterDigest returns a digest of a requester and its delegation chain, with the persons whose accounts they use.
// Only a caller with the same digest can use the approval.
func RequesterDigest(p *identityv1.Principal) []byte {
	var words []string
	hasPerson := principal.HasPerson(p)
	if hasPerson {
		words = append(words, requesterFormat)
	}
	for _, of := range append([]*identityv1.Principal{p}, p.GetChain()...) {
		words = append(words, of.GetTenant(), of.GetSubject(), of.GetAgent())
		if hasPerson {
			words = append(words, of.GetPerson())
		}
	}
	return hash(words...)
}

// hash returns a digest of a list of words. The digest depends on the boundaries between the words.
func hash(words ...string) []byte {
	sum := canonicaljson.Sum(words...)
	return sum[:]
}
