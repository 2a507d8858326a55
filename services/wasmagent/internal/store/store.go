// Package store stores agents. Records, journals and the counters of used rights are stored in SQLite or PostgreSQL.
// States are stored in a directory or an object store. A change is stored completely or not at all. An acknowledged
// change survives a crash. The wasmagent service uses the package.
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
var migrationFiles embed.FS

// The methods of a store return these errors. Compare them with [errors.Is].
var (
	// ErrUnavailable means that the store can't be reached or did not answer. The change may or may not have been
	// stored.
	ErrUnavailable = sqlstore.ErrUnavailable
	// ErrUnknown means that the agent does not exist.
	ErrUnknown = errors.New("there is no such agent")
	// ErrStale means that another process has changed the agent since it was read.
	ErrStale = errors.New("another process has changed the agent")
	// ErrStateLost means that a stored state is missing or was modified.
	ErrStateLost = errors.New("the agent's state is lost")
	// ErrAgentsFull means that no more agents may be created, in total or by one person.
	ErrAgentsFull = errors.New("the maximum of agents is reached")
	// ErrDescendantsFull means that an agent in the delegation chain may have no more descendants.
	ErrDescendantsFull = errors.New("the maximum of agents below another one is reached")
)

// Config configures a store.
type Config struct {
	// Source is `sqlite`, or the URL of a PostgreSQL database. File is the path of the SQLite file.
	Source, File string
	// Bucket is the URL of a bucket for states, for example s3://NAME. If it is empty, states are stored in the
	// directory Folder.
	Bucket, Folder string
	// Holder identifies this process among the processes that share the store. It is required.
	Holder string
	// Log receives log records about migrations. It is required.
	Log *slog.Logger
}

// Store is an open store. It is safe for concurrent use.
type Store struct {
	db     *sqlstore.DB
	states states
	holder string
	// IsShared is true if other processes may use the store.
	IsShared bool
}

// Open opens a store, and creates or migrates its tables. The caller must close the store.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	if cfg.Holder == "" {
		return nil, errors.New("store: a holder is required")
	}
	migrations, err := fs.Sub(migrationFiles, "migrations")
	if err != nil {
		return nil, err
	}
	bucket, err := openStates(cfg.Bucket, cfg.Folder)
	if err != nil {
		return nil, err
	}
	db, err := sqlstore.Open(ctx, sqlstore.Config{Name: "wasmagent", Marker: "agents behind events spent templates", Source: cfg.Source, File: cfg.File, Migrations: migrations, Log: cfg.Log})
	if err != nil {
		return nil, errors.Join(err, bucket.Close())
	}
	s := &Store{db: db, states: bucket, holder: cfg.Holder, IsShared: cfg.Source != sqlstore.SQLite}
	if err := s.migrateCounters(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// Close closes the store.
func (s *Store) Close() error { return errors.Join(s.db.Close(), s.states.Close()) }

// Turn states whether an agent has a running turn, and of which kind.
type Turn int64

const (
	// NoTurn means that no turn is running.
	NoTurn Turn = iota
	// AttachedTurn means that a turn is running and its caller waits for the result. If the process ends, the turn is
	// undone.
	AttachedTurn
	// DetachedTurn means that a turn is running and its caller no longer waits. If the process ends, another process
	// continues the turn.
	DetachedTurn
)

// Lease is how long a process may run a turn without renewing its lease on the turn. If it does not renew the lease
// within this time, other processes conclude that the process has ended.
const Lease = 15 * time.Second

// Row is a stored agent.
type Row struct {
	*wasmstorev1.Record

	// Position is the agent's position in the order in which agents were created. Version is the version of the row,
	// which increases with each change.
	Position, Version int64
	Turn              Turn
	// HeldElsewhere is true if another process runs the agent's turn.
	HeldElsewhere bool
}

// A Change is a change to an agent. It is stored completely or not at all. If the row has a different Version, storing
// the change fails with [ErrStale]. Events must directly follow the end of the journal.
type Change struct {
	ID      string
	Version int64
	// Record replaces the stored record. If it is nil, only Events are stored.
	Record *wasmstorev1.Record
	// State replaces the stored state. If it is nil, the stored state does not change. The store writes the key, the
	// digest and the size of the state to Record.
	State *wasmstorev1.State
	// Events are appended to the journal. FirstPosition is the position of the first event.
	Events        []*wasmstorev1.StoredEvent
	FirstPosition int64
	Turn          Turn

	// packedState is the stored form of State, and digest is its SHA-256 in hexadecimal digits. [Change.Pack] sets
	// both.
	packedState []byte
	digest      string
}

// Pack encodes State and returns the SHA-256 of the encoded form in hexadecimal digits. The caller must not change
// State afterwards.
func (c *Change) Pack() (digest string, err error) {
	if c.packedState == nil {
		c.packedState, c.digest, err = pack(c.State)
	}
	return c.digest, err
}

// Commit stores a change and returns the new version of the row. It returns [ErrStale] or [ErrUnavailable].
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
		return appendEvents(ctx, tx, c.ID, c.FirstPosition, c.Events)
	})
	if err != nil {
		return 0, err
	}
	if c.State != nil && old != "" && old != c.Record.GetStateKey() && !hasSnapshotState(c.Record, old) {
		s.states.remove(ctx, c.ID, old)
	}
	return c.Version + 1, nil
}

// putState stores the state of a change, if the change contains one.
func (s *Store) putState(ctx context.Context, c *Change) error {
	if c.State == nil {
		return nil
	}
	digest, err := c.Pack()
	if err != nil {
		return err
	}
	if digest != c.Record.GetStateDigest() || c.Record.GetStateKey() == "" {
		if c.Record.StateKey, err = s.states.put(ctx, c.ID, digest, c.packedState); err != nil {
			return err
		}
	}
	c.Record.StateDigest, c.Record.StateBytes = digest, int64(len(c.packedState))
	return nil
}

func hasSnapshotState(r *wasmstorev1.Record, key string) bool {
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

// size returns the stored size of an agent, in bytes.
func size(r *wasmstorev1.Record) int64 {
	n := r.GetStateBytes() + r.GetHead().GetBytes() + int64(proto.Size(r))
	for _, k := range r.GetKept() {
		n += k.GetSnapshot().GetSizeBytes()
	}
	return n
}

const columns = "record, made, version, turn, CASE WHEN turn > 0 AND holder <> $1 AND held > $2 THEN 1 ELSE 0 END"

type scanner interface{ Scan(into ...any) error }

func scan(from scanner) (*Row, error) {
	row, text, held := &Row{Record: new(wasmstorev1.Record)}, []byte(nil), 0
	if err := from.Scan(&text, &row.Position, &row.Version, &row.Turn, &held); err != nil {
		return nil, err
	}
	row.HeldElsewhere = held != 0
	return row, proto.Unmarshal(text, row.Record)
}

// leaseParams returns the parameters of queries that find the turns of other processes. A turn belongs to another
// process if the lease on the turn has a different holder and has not expired.
func (s *Store) leaseParams(tx *sqlstore.Tx) (holder string, now int64) {
	if !s.IsShared { // no other process uses the file, so all leases of other holders have ended
		return s.holder, 1 << 62
	}
	return s.holder, sqlstore.Micros(tx.Now)
}

// Get returns an agent, or [ErrUnknown] if there is none with this id.
func (s *Store) Get(ctx context.Context, id string) (row *Row, err error) {
	err = s.db.DoUnqueued(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		row, err = s.get(ctx, tx, id)
		return err
	})
	return row, err
}

// get returns an agent within a transaction. It returns [ErrUnknown] if there is no such agent, or if the agent is
// already being removed.
func (s *Store) get(ctx context.Context, tx *sqlstore.Tx, id string) (*Row, error) {
	holder, now := s.leaseParams(tx)
	row, err := scan(tx.QueryRowContext(ctx, "SELECT "+columns+" FROM agents WHERE id = $3 AND restorable <> 1", holder, now, id))
	if errors.Is(err, sql.ErrNoRows) {
		return nil, ErrUnknown
	}
	return row, err
}

// RaiseVersion increments the version of an agent, so that other processes load the agent again.
func (s *Store) RaiseVersion(ctx context.Context, id string) error {
	return s.db.Do(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		_, err := tx.ExecContext(ctx, "UPDATE agents SET version = version + 1 WHERE id = $1", id)
		return err
	})
}

// Version returns the version of an agent, or [ErrUnknown] if there is no such agent.
func (s *Store) Version(ctx context.Context, id string) (version int64, err error) {
	err = s.db.DoUnqueued(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		err := tx.QueryRowContext(ctx, "SELECT version FROM agents WHERE id = $1", id).Scan(&version)
		if errors.Is(err, sql.ErrNoRows) {
			return ErrUnknown
		}
		return err
	})
	return version, err
}

// State returns the state of an agent with the given key and digest. It returns [ErrStateLost] if the state is missing
// or has a different digest.
func (s *Store) State(ctx context.Context, id, key, digest string) (*wasmstorev1.State, error) {
	return s.states.get(ctx, id, key, digest)
}

// RemoveUnusedStates removes the states to which neither the agent's record nor a snapshot refers. A crash can leave
// such states.
func (s *Store) RemoveUnusedStates(ctx context.Context, r *wasmstorev1.Record) error {
	but := map[string]bool{r.GetStateKey(): true}
	for _, k := range r.GetKept() {
		but[k.GetStateKey()] = true
	}
	return s.states.removeExcept(ctx, r.GetId(), but)
}

// TakeOverTurn takes over a turn from another process and returns the agent. After that, the other process can no
// longer store changes to the agent. TakeOverTurn returns [ErrUnknown] if there is no such agent.
func (s *Store) TakeOverTurn(ctx context.Context, id string) (row *Row, err error) {
	err = s.db.Do(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		if _, err := tx.ExecContext(ctx, "UPDATE agents SET version = version + 1, holder = $2, held = $3 WHERE id = $1", id, s.holder, sqlstore.Micros(tx.Now.Add(Lease))); err != nil {
			return err
		}
		row, err = s.get(ctx, tx, id)
		return err
	})
	return row, err
}

// RenewLeases renews the leases that this process has on the turns of the given agents.
func (s *Store) RenewLeases(ctx context.Context, ids []string) error {
	return s.db.Do(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		for _, id := range ids {
			if _, err := tx.ExecContext(ctx, "UPDATE agents SET held = $3 WHERE id = $1 AND holder = $2 AND turn > 0", id, s.holder, sqlstore.Micros(tx.Now.Add(Lease))); err != nil {
				return err
			}
		}
		return nil
	})
}
