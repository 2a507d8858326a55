// Package store keeps agents: records, journals and what was used of their rights in SQLite
// or PostgreSQL, and their states in a folder or an object store. What was acknowledged is
// there after a crash, the whole of a change or nothing of it.
package store

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"time"

	"google.golang.org/protobuf/proto"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	wasmagentv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
	wasmstorev1 "github.com/sluice-mesh/sluice/gen/sluice/wasmstore/v1"
	"github.com/sluice-mesh/sluice/services/internal/principal"
	"github.com/sluice-mesh/sluice/services/internal/sqlstore"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/rights"
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
	db, err := sqlstore.Open(ctx, sqlstore.Config{Source: cfg.Source, File: cfg.File, Migrations: migrations, Log: cfg.Log})
	if err != nil {
		return nil, errors.Join(err, kept.bucket.Close())
	}
	return &Store{db: db, states: kept, holder: cfg.Holder, Shared: cfg.Source != sqlstore.SQLite}, nil
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
	text, digest, err := pack(c.State)
	if err != nil {
		return err
	}
	if digest != c.Record.GetStateDigest() || c.Record.GetStateKey() == "" {
		if c.Record.StateKey, err = s.states.put(ctx, c.ID, digest, text); err != nil {
			return err
		}
	}
	c.Record.StateDigest, c.Record.StateBytes = digest, int64(len(text))
	return nil
}

// isKept tells whether a state was asked to be kept.
func isKept(r *wasmstorev1.Record, key string) bool {
	for _, k := range r.GetKept() {
		if k.GetStateKey() == key {
			return true
		}
	}
	return false
}

func appendEvents(ctx context.Context, tx *sqlstore.Tx, id string, first int64, all []*wasmstorev1.StoredEvent) error {
	for i, e := range all {
		text, err := packEvent(e)
		if err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, "INSERT INTO events (id, place, event) VALUES ($1, $2, $3)", id, first+int64(i), text); err != nil {
			return err
		}
	}
	return nil
}

// packEvent is an event as it is kept: the SHA-256 of the message, and the message.
func packEvent(e *wasmstorev1.StoredEvent) ([]byte, error) {
	text, err := proto.Marshal(e)
	if err != nil {
		return nil, fmt.Errorf("write an event: %w", err)
	}
	sum := sha256.Sum256(text)
	return append(sum[:], text...), nil
}

// unpackEvent is the way back. What was changed is an event of no chain.
func unpackEvent(text []byte) *wasmstorev1.StoredEvent {
	e := new(wasmstorev1.StoredEvent)
	if len(text) < sha256.Size || sha256.Sum256(text[sha256.Size:]) != [sha256.Size]byte(text) || proto.Unmarshal(text[sha256.Size:], e) != nil {
		return new(wasmstorev1.StoredEvent)
	}
	return e
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

// Room is how many agents there may be.
type Room struct {
	// All and Own are how many in all, and of one person.
	All, Own int
	// Below is how many below each agent that stands behind the new one, by subject.
	Below map[string]int
}

// Create keeps a new agent, whose journal may begin with that of another: then From is that
// one's id, and as many of its events go before those of the change as First says. Errors:
// [ErrFull], [ErrChildren].
func (s *Store) Create(ctx context.Context, c Change, from string, room Room) (made int64, err error) {
	who := c.Record.GetCreator()
	owner := principal.Person(who)
	if err := s.db.Look(ctx, func(ctx context.Context, tx *sqlstore.Tx) error { return room.has(ctx, tx, who) }); err != nil {
		return 0, err // before anything is written for it
	}
	if err := s.putState(ctx, &c); err != nil {
		return 0, err
	}
	text, err := proto.Marshal(c.Record)
	if err != nil {
		return 0, fmt.Errorf("write an agent: %w", err)
	}
	err = s.db.Do(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		if err := room.has(ctx, tx, who); err != nil { // others were made meanwhile
			return err
		}
		if err := tx.QueryRowContext(ctx, "SELECT coalesce(max(made), 0) + 1 FROM agents").Scan(&made); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, `INSERT INTO agents (id, made, version, tenant, owner, state, restorable, size, turn, holder, held, record)
			VALUES ($1, $2, 1, $3, $4, $5, 0, $6, 0, '', 0, $7)`, c.ID, made, who.GetTenant(), owner.Subject, int64(c.Record.GetState()), size(c.Record), text); err != nil {
			return err
		}
		for _, one := range append([]*identityv1.Principal{who}, who.GetChain()...) {
			if _, err := tx.ExecContext(ctx, "INSERT INTO behind (id, tenant, subject, agent) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING",
				c.ID, who.GetTenant(), one.GetSubject(), one.GetAgent()); err != nil {
				return err
			}
		}
		if from != "" {
			if _, err := tx.ExecContext(ctx, "INSERT INTO events (id, place, event) SELECT $1, place, event FROM events WHERE id = $2 AND place < $3", c.ID, from, c.First); err != nil {
				return err
			}
		}
		return appendEvents(ctx, tx, c.ID, c.First, c.Events)
	})
	if err != nil && !errors.Is(err, ErrAway) { // else it may be there
		err = errors.Join(err, s.states.drop(ctx, c.ID, nil))
	}
	return made, err
}

// has tells whether there may be one more of somebody's. Errors: [ErrFull], [ErrChildren].
func (r Room) has(ctx context.Context, tx *sqlstore.Tx, who *identityv1.Principal) error {
	owner := principal.Person(who)
	var all, own int
	if err := tx.QueryRowContext(ctx, "SELECT count(*) FROM agents").Scan(&all); err != nil {
		return err
	}
	if err := tx.QueryRowContext(ctx, "SELECT count(*) FROM agents WHERE tenant = $1 AND owner = $2", owner.Tenant, owner.Subject).Scan(&own); err != nil {
		return err
	}
	if all >= r.All || own >= r.Own {
		return ErrFull
	}
	for subject, most := range r.Below {
		n, err := below(ctx, tx, who.GetTenant(), subject)
		if err != nil {
			return err
		}
		if n >= most {
			return ErrChildren
		}
	}
	return nil
}

// Below is how many agents stand below one, at any depth.
func (s *Store) Below(ctx context.Context, tenant, subject string) (n int, err error) {
	err = s.db.Look(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		n, err = below(ctx, tx, tenant, subject)
		return err
	})
	return n, err
}

func below(ctx context.Context, tx *sqlstore.Tx, tenant, subject string) (n int, err error) {
	return n, tx.QueryRowContext(ctx, `SELECT count(DISTINCT behind.id) FROM behind JOIN agents ON agents.id = behind.id
		WHERE behind.tenant = $1 AND behind.subject = $2 AND (restorable = 0 OR restorable > $3)`, tenant, subject, sqlstore.Micros(tx.Now)).Scan(&n)
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

// Events reads events of an agent's journal behind a place, as many as have so many bytes,
// but one at least, and no more than limit. It tells whether there are more.
func (s *Store) Events(ctx context.Context, id string, behind int64, limit, bytes int) (all []*wasmstorev1.StoredEvent, more bool, err error) {
	err = s.db.Look(ctx, func(ctx context.Context, tx *sqlstore.Tx) (err error) {
		all, more = nil, false
		rows, err := tx.QueryContext(ctx, "SELECT event FROM events WHERE id = $1 AND place > $2 ORDER BY place LIMIT $3", id, behind, limit+1)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, rows.Close()) }()
		for left := bytes; rows.Next(); {
			var text []byte
			if err := rows.Scan(&text); err != nil {
				return err
			}
			if left -= len(text); left < 0 && len(all) > 0 || len(all) == limit {
				more = true
				break
			}
			all = append(all, unpackEvent(text))
		}
		return rows.Err()
	})
	return all, more, err
}

// Filter says which agents are listed.
type Filter struct {
	Tenant string
	// By are who may stand behind them; nil stands for all of the tenant.
	By *identityv1.Principal
	// States are those that they may be in; none: all but terminated.
	States []wasmagentv1.AgentState
	// Before is the place behind which the list goes on; 0 begins.
	Before int64
	Limit  int
}

// where is the filter but for Before as SQL, with parameters from $3.
func (f Filter) where() (text string, params []any) {
	text, params = "tenant = $3", []any{f.Tenant}
	if f.By != nil {
		text += " AND EXISTS (SELECT 1 FROM behind WHERE behind.id = agents.id AND behind.tenant = $3 AND subject = $4 AND agent = $5)"
		params = append(params, f.By.GetSubject(), f.By.GetAgent())
	}
	if len(f.States) == 0 {
		return text + fmt.Sprintf(" AND state <> %d", wasmagentv1.AgentState_AGENT_STATE_TERMINATED), params
	}
	text += " AND state IN ("
	for i, at := range f.States {
		if i > 0 {
			text += ", "
		}
		text += fmt.Sprint(int32(at))
	}
	return text + ")", params
}

// List reads a page of agents, the newest first, and counts those on all pages. One whose turn
// runs is listed by how it was before.
func (s *Store) List(ctx context.Context, f Filter) (page []*Row, count int, err error) {
	where, params := f.where()
	err = s.db.Look(ctx, func(ctx context.Context, tx *sqlstore.Tx) (err error) {
		page = nil
		holder, now := s.heldBy(tx)
		given := append([]any{holder, now}, params...)
		// The first two are named so that PostgreSQL knows their types.
		if err := tx.QueryRowContext(ctx, "SELECT count(*) FROM agents WHERE CAST($1 AS TEXT) <> '' AND CAST($2 AS BIGINT) >= 0 AND "+where, given...).Scan(&count); err != nil {
			return err
		}
		text := "SELECT " + columns + " FROM agents WHERE " + where
		if f.Before > 0 {
			given = append(given, f.Before)
			text += fmt.Sprintf(" AND made < $%d", len(given))
		}
		given = append(given, f.Limit)
		rows, err := tx.QueryContext(ctx, text+fmt.Sprintf(" ORDER BY made DESC LIMIT $%d", len(given)), given...)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, rows.Close()) }()
		for rows.Next() {
			row, err := scan(rows)
			if err != nil {
				return err
			}
			page = append(page, row)
		}
		return rows.Err()
	})
	return page, count, err
}

// Left are agents with turns that no other process works on.
func (s *Store) Left(ctx context.Context) (ids []string, err error) {
	return s.ids(ctx, func(tx *sqlstore.Tx) (string, []any) {
		holder, now := s.heldBy(tx)
		return "SELECT id FROM agents WHERE turn > 0 AND (holder = $1 OR held <= $2) ORDER BY made", []any{holder, now}
	})
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

// Bury ends an agent of which nothing else can be changed: its state or its journal is lost.
func (s *Store) Bury(ctx context.Context, id string, until time.Time) error {
	return s.db.Do(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		_, err := tx.ExecContext(ctx, "UPDATE agents SET version = version + 1, turn = 0, state = $2, restorable = $3 WHERE id = $1 AND restorable = 0",
			id, int64(wasmagentv1.AgentState_AGENT_STATE_TERMINATED), sqlstore.Micros(until))
		return err
	})
}

// Gone are agents that ended for good, the oldest first.
func (s *Store) Gone(ctx context.Context) (ids []string, err error) {
	return s.ids(ctx, func(tx *sqlstore.Tx) (string, []any) {
		return "SELECT id FROM agents WHERE restorable > 0 AND restorable <= $1 ORDER BY restorable LIMIT 100", []any{sqlstore.Micros(tx.Now)}
	})
}

// Ended are a person's agents that ended and may be brought back, the oldest first.
func (s *Store) Ended(ctx context.Context, of principal.Key) (ids []string, err error) {
	return s.ids(ctx, func(*sqlstore.Tx) (string, []any) {
		return "SELECT id FROM agents WHERE restorable > 0 AND tenant = $1 AND owner = $2 ORDER BY restorable", []any{of.Tenant, of.Subject}
	})
}

func (s *Store) ids(ctx context.Context, query func(tx *sqlstore.Tx) (string, []any)) (ids []string, err error) {
	err = s.db.Look(ctx, func(ctx context.Context, tx *sqlstore.Tx) (err error) {
		ids = nil
		text, params := query(tx)
		rows, err := tx.QueryContext(ctx, text, params...)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, rows.Close()) }()
		for rows.Next() {
			var id string
			if err := rows.Scan(&id); err != nil {
				return err
			}
			ids = append(ids, id)
		}
		return rows.Err()
	})
	return ids, err
}

// Sizes are how large all agents are together, and those of one person, in bytes.
func (s *Store) Sizes(ctx context.Context, of principal.Key) (all, own int64, err error) {
	err = s.db.Look(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		if err := tx.QueryRowContext(ctx, "SELECT coalesce(sum(size), 0) FROM agents WHERE tenant = $1 AND owner = $2", of.Tenant, of.Subject).Scan(&own); err != nil {
			return err
		}
		return tx.QueryRowContext(ctx, "SELECT coalesce(sum(size), 0) FROM agents").Scan(&all)
	})
	return all, own, err
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

// forgotten is how many events are forgotten at a time: others wait for that.
const forgotten = 500

// Forget forgets an agent that has ended, and all that is kept of it; with gone only one that
// can't be brought back any more. One that was brought back meanwhile stays: it tells which.
func (s *Store) Forget(ctx context.Context, id string, gone bool) (ended bool, err error) {
	err = s.db.Do(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		before := int64(math.MaxInt64)
		if gone {
			before = sqlstore.Micros(tx.Now)
		}
		result, err := tx.ExecContext(ctx, "UPDATE agents SET version = version + 1, restorable = 1, size = 0 WHERE id = $1 AND restorable > 0 AND restorable <= $2", id, before)
		if err != nil {
			return err
		}
		n, err := result.RowsAffected()
		ended = n > 0
		return err
	})
	if err != nil || !ended {
		return false, err
	}
	for more := true; more; {
		err := s.db.Do(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
			result, err := tx.ExecContext(ctx, "DELETE FROM events WHERE id = $1 AND place IN (SELECT place FROM events WHERE id = $1 ORDER BY place LIMIT $2)", id, forgotten)
			if err != nil {
				return err
			}
			n, err := result.RowsAffected()
			if more = n == forgotten; more || err != nil {
				return err
			}
			_, err = tx.ExecContext(ctx, "DELETE FROM agents WHERE id = $1", id)
			return err
		})
		if err != nil {
			return true, err
		}
	}
	return true, s.states.drop(ctx, id, nil)
}

// What is used of rights.
const (
	Tools  = "tool"
	Tokens = "tokens"
	Cost   = "cost"
)

// A Wish is a use of one of an agent's rights: of the first that has something left.
type Wish struct {
	ID   string
	Fits []rights.Fit
}

// A Use is a use that was taken.
type Use struct {
	ID string
	rights.Fit
}

// Take takes all wishes out of what is left, or none. Errors: [rights.ErrSpent].
func (s *Store) Take(ctx context.Context, wishes []Wish) (taken []Use, err error) {
	err = s.db.Do(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		taken = nil
		for _, wish := range wishes {
			use, err := take(ctx, tx, wish)
			if err != nil {
				return err
			}
			taken = append(taken, use)
		}
		return nil
	})
	return taken, err
}

func take(ctx context.Context, tx *sqlstore.Tx, wish Wish) (Use, error) {
	for _, fit := range wish.Fits {
		result, err := tx.ExecContext(ctx, `INSERT INTO spent (id, granted, what, place, used) VALUES ($1, $2, $3, $4, 1)
			ON CONFLICT (id, granted, what, place) DO UPDATE SET used = spent.used + 1 WHERE spent.used < $5`,
			wish.ID, fit.Grant, Tools, int64(fit.Place), fit.Most)
		if err != nil {
			return Use{}, err
		}
		if n, err := result.RowsAffected(); err != nil || n == 1 {
			return Use{wish.ID, fit}, err
		}
	}
	return Use{}, rights.ErrSpent
}

// GiveBack gives uses back.
func (s *Store) GiveBack(ctx context.Context, uses []Use) error {
	return s.db.Do(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		for _, u := range uses {
			if _, err := tx.ExecContext(ctx, "UPDATE spent SET used = used - 1 WHERE id = $1 AND granted = $2 AND what = $3 AND place = $4",
				u.ID, u.Grant, Tools, int64(u.Place)); err != nil {
				return err
			}
		}
		return nil
	})
}

// A Spend is what a question to a model took, of one of an agent's rights: of the first that has
// something left.
type Spend struct {
	ID            string
	Fits          []rights.ModelFit
	Tokens, Nanos int64
}

// HasLeft tells whether one of an agent's rights to ask a model has something left.
func (s *Store) HasLeft(ctx context.Context, id string, fits []rights.ModelFit) (left bool, err error) {
	err = s.db.Look(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		at, err := firstLeft(ctx, tx, id, fits)
		left = at != nil
		return err
	})
	return left, err
}

// firstLeft is the first right that has something left; nil for none.
func firstLeft(ctx context.Context, tx *sqlstore.Tx, id string, fits []rights.ModelFit) (*rights.ModelFit, error) {
	for _, fit := range fits {
		left := true
		for what, most := range map[string]int64{Tokens: fit.Tokens, Cost: fit.Nanos} {
			var used int64
			err := tx.QueryRowContext(ctx, "SELECT coalesce(sum(used), 0) FROM spent WHERE id = $1 AND granted = $2 AND what = $3 AND place = $4", id, fit.Grant, what, int64(fit.Place)).Scan(&used)
			if err != nil {
				return nil, err
			}
			left = left && (most < 0 || used < most)
		}
		if left {
			return &fit, nil
		}
	}
	return nil, nil //nolint:nilnil // none is an answer
}

// SpendModel notes what questions took. A right may be overdrawn by one question: what it takes
// is known behind it.
func (s *Store) SpendModel(ctx context.Context, spends []Spend) error {
	return s.db.Do(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		for _, spend := range spends {
			fit, err := firstLeft(ctx, tx, spend.ID, spend.Fits)
			if err != nil {
				return err
			}
			if fit == nil { // others asked meanwhile
				fit = &spend.Fits[0]
			}
			for what, n := range map[string]int64{Tokens: spend.Tokens, Cost: spend.Nanos} {
				if _, err := tx.ExecContext(ctx, `INSERT INTO spent (id, granted, what, place, used) VALUES ($1, $2, $3, $4, $5)
					ON CONFLICT (id, granted, what, place) DO UPDATE SET used = spent.used + $5`, spend.ID, fit.Grant, what, int64(fit.Place), n); err != nil {
					return err
				}
			}
		}
		return nil
	})
}
