// Package store keeps agents: records, journals and what was used of their rights in SQLite
// or PostgreSQL, and their states in a folder or an object store. What was acknowledged is
// there after a crash, the whole of a change or nothing of it.
package store

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"io/fs"
	"log/slog"
	"time"

	"google.golang.org/protobuf/proto"

	wasmstorev1 "github.com/sluice-mesh/sluice/gen/sluice/wasmstore/v1"
	"github.com/sluice-mesh/sluice/services/internal/sqlstore"
)

//go:embed migrations/*.sql
var files embed.FS

// Errors of a store, for [errors.Is].
var (
	// ErrAway: it can't be reached, or did not answer; whether a change holds is not known.
	ErrAway = sqlstore.ErrAway
	// ErrUnknown: there is no such agent.
	ErrUnknown = errors.New("there is no such agent")
	// ErrStale: another process has changed the agent since it was read.
	ErrStale = errors.New("the agent was changed elsewhere")
	// ErrState: the state is not what was kept.
	ErrState = errors.New("the agent's state is lost")
	// ErrFull: there are as many agents as there may be.
	ErrFull = errors.New("there are as many agents as there may be")
	// ErrChildren: there are as many agents below one as there may be.
	ErrChildren = errors.New("there are as many agents below another as it may have")
)

// Config says where agents are kept.
type Config struct {
	// Source is `sqlite` or the URL of a PostgreSQL database, and File the path of
	// SQLite's file.
	Source, File string
	// Bucket is the URL of a bucket for states, for example s3://NAME; empty keeps them in
	// Folder.
	Bucket, Folder string
	// Holder names this process among those that share the store; required.
	Holder string
	// Log takes what migrations do; required.
	Log *slog.Logger
}

// Store is an open store. It is safe for concurrent use.
type Store struct {
	db     *sqlstore.DB
	states *states
	holder string
	// Shared says that other processes may use it, too.
	Shared bool
}

// Open opens a store, whose tables it makes or brings up to date. The caller closes it.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	if cfg.Holder == "" {
		return nil, errors.New("store: this process has to have a name")
	}
	migrations, err := fs.Sub(files, "migrations")
	if err != nil {
		return nil, err
	}
	kept, err := openStates(ctx, cfg.Bucket, cfg.Folder)
	if err != nil {
		return nil, err
	}
	db, err := sqlstore.Open(ctx, sqlstore.Config{Name: "wasmagent", Marker: "agents behind events spent templates", Source: cfg.Source, File: cfg.File, Migrations: migrations, Log: cfg.Log})
	if err != nil {
		return nil, errors.Join(err, kept.bucket.Close())
	}
	s := &Store{db: db, states: kept, holder: cfg.Holder, Shared: cfg.Source != sqlstore.SQLite}
	if err := s.adoptSpent(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// Close closes the store.
func (s *Store) Close() error { return errors.Join(s.db.Close(), s.states.bucket.Close()) }

// Turn is whether an agent works on a prompt.
type Turn int64

const (
	// NoTurn says that it does not.
	NoTurn Turn = iota
	// Follows says that it does, for as long as whoever prompted waits.
	Follows
	// Alone says that it does, and goes on after the end of its process.
	Alone
)

// Lease is for how long a process that works on a turn is believed to.
const Lease = 15 * time.Second

// Row is an agent as it is kept.
type Row struct {
	*wasmstorev1.Record

	// Made is its place among all, and Version rises with each change.
	Made, Version int64
	Turn          Turn
	// Held says that another process works on its turn.
	Held bool
}

// A Change is what is kept together. The row that it changes has to have the Version that was
// read, and the journal to end where Events go on: else it is [ErrStale].
type Change struct {
	ID      string
	Version int64
	// Record replaces the one that is kept, unless it is nil: then the journal alone goes on.
	Record *wasmstorev1.Record
	// State replaces the one that is kept, unless it is nil. Its digest and size are
	// written into Record.
	State *wasmstorev1.State
	// Events follow those that are kept; First is the place of the first of them.
	Events []*wasmstorev1.StoredEvent
	First  int64
	Turn   Turn

	// packed is State as it is stored, and digest its SHA-256 as hex, once [Change.Pack] was called.
	packed []byte
	digest string
}

// Pack writes State as it is stored, and returns the SHA-256 of that as hex. State is not changed behind
// it.
func (c *Change) Pack() (digest string, err error) {
	if c.packed == nil {
		c.packed, c.digest, err = pack(c.State)
	}
	return c.digest, err
}

// Commit makes a change and returns the version behind it.
func (s *Store) Commit(ctx context.Context, c Change) (version int64, err error) {
	old := c.Record.GetStateKey()
	if err := s.putState(ctx, &c); err != nil {
		return 0, err
	}
	err = s.db.Do(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		holder, held, more := "", int64(0), int64(0)
		for _, e := range c.Events {
			more += int64(proto.Size(e))
		}
		if c.Turn != NoTurn {
			holder, held = s.holder, sqlstore.Micros(tx.Now.Add(Lease))
		}
		var result sql.Result
		if c.Record == nil {
			result, err = tx.ExecContext(ctx, "UPDATE agents SET version = version + 1, turn = $3, holder = $4, held = $5, size = size + $6 WHERE id = $1 AND version = $2",
				c.ID, c.Version, int64(c.Turn), holder, held, more)
		} else {
			var text []byte
			if text, err = proto.Marshal(c.Record); err != nil {
				return err
			}
			result, err = tx.ExecContext(ctx, `UPDATE agents SET version = version + 1, turn = $3, holder = $4, held = $5,
				state = $6, restorable = $7, size = $8, record = $9 WHERE id = $1 AND version = $2`,
				c.ID, c.Version, int64(c.Turn), holder, held, int64(c.Record.GetState()), restorable(c.Record), size(c.Record), text)
		}
		if err != nil {
			return err
		}
		if n, err := result.RowsAffected(); err != nil || n != 1 {
			return errors.Join(ErrStale, err)
		}
		return appendEvents(ctx, tx, c.ID, c.First, c.Events)
	})
	if err != nil {
		return 0, err
	}
	if c.State != nil && old != "" && old != c.Record.GetStateKey() && !isKept(c.Record, old) {
		s.states.remove(ctx, c.ID, old)
	}
	return c.Version + 1, nil
}

// putState keeps a change's state, where it has one.
func (s *Store) putState(ctx context.Context, c *Change) error {
	if c.State == nil {
		return nil
	}
	digest, err := c.Pack()
	if err != nil {
		return err
	}
	if digest != c.Record.GetStateDigest() || c.Record.GetStateKey() == "" {
		if c.Record.StateKey, err = s.states.put(ctx, c.ID, digest, c.packed); err != nil {
			return err
		}
	}
	c.Record.StateDigest, c.Record.StateBytes = digest, int64(len(c.packed))
	return nil
}

// isKept reports whether a state was asked to be kept.
func isKept(r *wasmstorev1.Record, key string) bool {
	for _, k := range r.GetKept() {
		if k.GetStateKey() == key {
			return true
		}
	}
	return false
}

func restorable(r *wasmstorev1.Record) int64 {
	if r.GetRestorableUntil() == nil {
		return 0
	}
	return sqlstore.Micros(r.GetRestorableUntil().AsTime())
}

// size is all that is kept of an agent, in bytes.
func size(r *wasmstorev1.Record) int64 {
	n := r.GetStateBytes() + r.GetHead().GetBytes() + int64(proto.Size(r))
	for _, k := range r.GetKept() {
		n += k.GetSnapshot().GetSizeBytes()
	}
	return n
}

const columns = "record, made, version, turn, CASE WHEN turn > 0 AND holder <> $1 AND held > $2 THEN 1 ELSE 0 END"

// scanner is a row, or one of many.
type scanner interface{ Scan(into ...any) error }

func scan(from scanner) (*Row, error) {
	row, text, held := &Row{Record: new(wasmstorev1.Record)}, []byte(nil), 0
	if err := from.Scan(&text, &row.Made, &row.Version, &row.Turn, &held); err != nil {
		return nil, err
	}
	row.Held = held != 0
	return row, proto.Unmarshal(text, row.Record)
}

// heldBy is who does not count as another process, and until when others do.
func (s *Store) heldBy(tx *sqlstore.Tx) (holder string, now int64) {
	if !s.Shared { // whoever had the file before is gone
		return s.holder, 1 << 62
	}
	return s.holder, sqlstore.Micros(tx.Now)
}

// Get reads an agent. Errors: [ErrUnknown].
func (s *Store) Get(ctx context.Context, id string) (row *Row, err error) {
	err = s.db.Look(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		row, err = s.get(ctx, tx, id)
		return err
	})
	return row, err
}

// get reads an agent, unless it is being forgotten.
func (s *Store) get(ctx context.Context, tx *sqlstore.Tx, id string) (*Row, error) {
	holder, now := s.heldBy(tx)
	row, err := scan(tx.QueryRowContext(ctx, "SELECT "+columns+" FROM agents WHERE id = $3 AND restorable <> 1", holder, now, id))
	if errors.Is(err, sql.ErrNoRows) {
		return nil, ErrUnknown
	}
	return row, err
}

// Touch has other processes read an agent again that they have in memory.
func (s *Store) Touch(ctx context.Context, id string) error {
	return s.db.Do(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		_, err := tx.ExecContext(ctx, "UPDATE agents SET version = version + 1 WHERE id = $1", id)
		return err
	})
}

// Version is that of an agent now. Errors: [ErrUnknown].
func (s *Store) Version(ctx context.Context, id string) (version int64, err error) {
	err = s.db.Look(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		err := tx.QueryRowContext(ctx, "SELECT version FROM agents WHERE id = $1", id).Scan(&version)
		if errors.Is(err, sql.ErrNoRows) {
			return ErrUnknown
		}
		return err
	})
	return version, err
}

// State reads a state of an agent. Errors: [ErrState].
func (s *Store) State(ctx context.Context, id, key, digest string) (*wasmstorev1.State, error) {
	return s.states.get(ctx, id, key, digest)
}

// Tidy forgets states of an agent that nobody asked to keep, as they are left behind by
// crashes.
func (s *Store) Tidy(ctx context.Context, r *wasmstorev1.Record) error {
	but := map[string]bool{r.GetStateKey(): true}
	for _, k := range r.GetKept() {
		but[k.GetStateKey()] = true
	}
	return s.states.drop(ctx, r.GetId(), but)
}

// Seize makes the turn of another process this one's: that one can keep nothing of it any more.
// It returns the agent behind that. Errors: [ErrUnknown].
func (s *Store) Seize(ctx context.Context, id string) (row *Row, err error) {
	err = s.db.Do(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		if _, err := tx.ExecContext(ctx, "UPDATE agents SET version = version + 1, holder = $2, held = $3 WHERE id = $1", id, s.holder, sqlstore.Micros(tx.Now.Add(Lease))); err != nil {
			return err
		}
		row, err = s.get(ctx, tx, id)
		return err
	})
	return row, err
}

// Renew says that this process still works on the turns of agents.
func (s *Store) Renew(ctx context.Context, ids []string) error {
	return s.db.Do(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		for _, id := range ids {
			if _, err := tx.ExecContext(ctx, "UPDATE agents SET held = $3 WHERE id = $1 AND holder = $2 AND turn > 0", id, s.holder, sqlstore.Micros(tx.Now.Add(Lease))); err != nil {
				return err
			}
		}
		return nil
	})
}
