package store

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/sluice-mesh/sluice/services/internal/sqlstore"
	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
)

const (
	// MaxStops limits the number of emergency stops by one tenant's operators that are in force at the same time.
	MaxStops = 1000
	// maxEnded limits the number of stored ended stops by one tenant's operators. It also limits the result of
	// [Store.EndedStops].
	maxEnded = 1000
)

// ErrStopsFull means that the operators of a tenant already have [MaxStops] stops in force.
var ErrStopsFull = fmt.Errorf("the operators of this tenant already have %d stops in force: end some of them first", MaxStops)

// Stop is an emergency stop and its history.
type Stop struct {
	engine.Stop

	// OperatorTenant and Operator are the tenant and the subject of the operator who stopped the calls.
	OperatorTenant, Operator string
	// Began is the time when the stop began. Ended is the time when it ended, or zero while the stop is in force.
	Began, Ended time.Time
	// ResumedBy is the subject of the operator who resumed the calls. It is empty while the stop is in force.
	ResumedBy string
}

// StopSet contains the stops that are in force at a store version, oldest first.
type StopSet struct {
	Version int64
	Stops   []Stop
}

// Engine returns the stops as the type that package engine uses.
func (s StopSet) Engine() engine.Stops {
	list := make([]engine.Stop, len(s.Stops))
	for i := range s.Stops {
		list[i] = s.Stops[i].Stop
	}
	return engine.NewStops(list)
}

// StopCalls stores a stop and sets its time. If operators of the same tenant already have a stop with the same selector
// in force, StopCalls changes nothing, and returns the existing stop and true. The returned set contains all stops in
// force. The error can be [ErrStopsFull] or [sqlstore.ErrUnavailable].
func (s *Store) StopCalls(ctx context.Context, want Stop) (stop Stop, existed bool, set StopSet, err error) {
	err = s.db.Do(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		stop, existed = want, false
		if set, err = stopsInForce(ctx, tx); err != nil {
			return err
		}
		own := 0
		for _, found := range set.Stops {
			if found.OperatorTenant != want.OperatorTenant {
				continue
			}
			if own++; found.Selector == want.Selector {
				stop, existed = found, true
				return nil
			}
		}
		if own >= MaxStops {
			return ErrStopsFull
		}
		stop.Began = tx.Now
		if _, err := tx.ExecContext(ctx, `INSERT INTO stops (id, operator_tenant, operator, agent, server, tenant, reason, began, resumed_by)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, '')`,
			rand.Text(), stop.OperatorTenant, stop.Operator, stop.Agent, stop.Server, stop.Tenant, stop.Reason, sqlstore.Micros(tx.Now)); err != nil {
			return err
		}
		set.Stops = append(set.Stops, stop)
		set.Version, err = nextVersion(ctx, tx)
		return err
	})
	return stop, existed, set, err
}

// Resume specifies which stops to end, and the operator who ends them.
type Resume struct {
	engine.Selector

	// Operator and OperatorTenant are the operator's subject and tenant. Unless AnyTenant is true, only stops by operators
	// of this tenant are ended.
	OperatorTenant, Operator string
	AnyTenant                bool
}

// ResumeCalls ends the stops with the given selector, and returns them. The returned set contains the stops that are
// still in force. If the store is unavailable, ResumeCalls returns [sqlstore.ErrUnavailable].
func (s *Store) ResumeCalls(ctx context.Context, r Resume) (ended []Stop, set StopSet, err error) {
	err = s.db.Do(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		ended = nil
		all, err := stopsInForce(ctx, tx)
		if err != nil {
			return err
		}
		set = StopSet{Version: all.Version}
		for _, found := range all.Stops {
			if found.Selector != r.Selector || !r.AnyTenant && found.OperatorTenant != r.OperatorTenant {
				set.Stops = append(set.Stops, found)
				continue
			}
			found.Ended, found.ResumedBy = tx.Now, r.Operator
			if err := endStop(ctx, tx, found); err != nil {
				return err
			}
			ended = append(ended, found)
		}
		if len(ended) > 0 {
			set.Version, err = nextVersion(ctx, tx)
		}
		return err
	})
	return ended, set, err
}

// endStop stores that a stop has ended. If the operators of the same tenant have more than maxEnded ended stops,
// endStop deletes the oldest ones.
func endStop(ctx context.Context, tx *sqlstore.Tx, stop Stop) error {
	_, err := tx.ExecContext(ctx, `UPDATE stops SET ended = $1, resumed_by = $2
		WHERE operator_tenant = $3 AND agent = $4 AND server = $5 AND tenant = $6 AND ended IS NULL`,
		sqlstore.Micros(stop.Ended), stop.ResumedBy, stop.OperatorTenant, stop.Agent, stop.Server, stop.Tenant)
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, `DELETE FROM stops WHERE operator_tenant = $1 AND ended IS NOT NULL AND id NOT IN
		(SELECT id FROM stops WHERE operator_tenant = $1 AND ended IS NOT NULL ORDER BY ended DESC, id LIMIT $2)`, stop.OperatorTenant, maxEnded)
	return err
}

// StopsInForce returns the stops in force and the store version.
func (s *Store) StopsInForce(ctx context.Context) (set StopSet, err error) {
	err = s.db.DoUnqueued(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		set, err = stopsInForce(ctx, tx)
		return err
	})
	return set, err
}

// EndedStops returns at most maxEnded ended stops for which accept returns true, newest first.
func (s *Store) EndedStops(ctx context.Context, accept func(Stop) bool) (stops []Stop, err error) {
	err = s.db.DoUnqueued(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		stops, err = readStops(ctx, tx, "WHERE ended IS NOT NULL ORDER BY ended DESC, id", accept)
		return err
	})
	return stops[:min(len(stops), maxEnded)], err
}

func stopsInForce(ctx context.Context, tx *sqlstore.Tx) (set StopSet, err error) {
	if err := tx.QueryRowContext(ctx, "SELECT version FROM changes").Scan(&set.Version); err != nil {
		return StopSet{}, err
	}
	set.Stops, err = readStops(ctx, tx, "WHERE ended IS NULL ORDER BY began, id", func(Stop) bool { return true })
	return set, err
}

func readStops(ctx context.Context, tx *sqlstore.Tx, where string, shows func(Stop) bool) (out []Stop, err error) {
	err = tx.Each(ctx, func(rows *sql.Rows) error {
		var s Stop
		var began int64
		var ended sql.NullInt64
		if err := rows.Scan(&s.OperatorTenant, &s.Operator, &s.Agent, &s.Server, &s.Tenant, &s.Reason, &began, &ended, &s.ResumedBy); err != nil {
			return fmt.Errorf("read a stop: %w", err)
		}
		s.Began = sqlstore.Time(began)
		if ended.Valid {
			s.Ended = sqlstore.Time(ended.Int64)
		}
		if shows(s) {
			out = append(out, s)
		}
		return nil
	}, "SELECT operator_tenant, operator, agent, server, tenant, reason, began, ended, resumed_by FROM stops "+where)
	return out, err
}

// nextVersion increments the version of the store and returns it.
func nextVersion(ctx context.Context, tx *sqlstore.Tx) (version int64, err error) {
	err = tx.QueryRowContext(ctx, "UPDATE changes SET version = version + 1 RETURNING version").Scan(&version)
	if errors.Is(err, sql.ErrNoRows) {
		err = errors.New("the table changes is empty")
	}
	return version, err
}
