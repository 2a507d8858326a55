package sqlstore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Tx is a transaction. Its statements see one moment of the store.
type Tx struct {
	*sql.Tx
	// Now is the store's clock when the transaction began, to the microsecond.
	Now time.Time
}

// Each calls read with every row that a query finds, until it returns an error.
func (tx *Tx) Each(ctx context.Context, read func(*sql.Rows) error, query string, args ...any) (err error) {
	rows, err := tx.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		if err := read(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

// Times of PostgreSQL, in milliseconds. silence is how long it lets a process be
// silent within a transaction: as long as those who ask wait for an answer. patience is
// how long one waits for its turn before it joins the end of the queue again: those whom
// the network has lost must not have turns for long.
const (
	silence  = "2000"
	patience = "1000"
)

// pauses between attempts, each drawn at random up to it.
const (
	firstPause = 2 * time.Millisecond
	lastPause  = 100 * time.Millisecond
)

// Do runs fn in one serializable transaction, in its turn, and commits it where fn
// returns nil. Where it collides with another, fn is run again, so it must do nothing
// but use its transaction. Errors are fn's own, and [ErrAway], also where ctx has
// ended. No transaction takes longer than a minute, whatever ctx allows.
func (d *DB) Do(ctx context.Context, fn func(ctx context.Context, tx *Tx) error) error {
	return d.do(ctx, d.queue, fn)
}

// Look is Do for what will hardly change anything: it waits for nobody, unless it has
// collided.
func (d *DB) Look(ctx context.Context, fn func(ctx context.Context, tx *Tx) error) error {
	return d.do(ctx, "", fn)
}

func (d *DB) do(ctx context.Context, queue string, fn func(ctx context.Context, tx *Tx) error) error {
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		err := d.once(ctx, queue, fn)
		if !collided(err) {
			return away(err)
		}
		queue = d.queue
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ErrAway, ctx.Err())
		case <-time.After(rand.N(pause)): //nolint:gosec // no secret
		}
	}
}

// begin waits until there is a connection for one more transaction, as long as ctx: those
// that have them work, so the store is not away for who waits. The function ends it.
func (d *DB) begin(ctx context.Context) (end func(), err error) {
	if d.working == nil {
		return func() {}, nil
	}
	select {
	case d.working <- struct{}{}:
		return func() { <-d.working }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// once runs fn in a transaction, which begins with the SQL of queue.
func (d *DB) once(ctx context.Context, queue string, fn func(ctx context.Context, tx *Tx) error) error {
	end, err := d.begin(ctx)
	if err != nil {
		return err
	}
	defer end()
	ctx, giveUp := context.WithTimeout(ctx, transactionTime)
	defer giveUp()
	answer := time.AfterFunc(answerTime, giveUp)
	defer answer.Stop()
	if d.now != nil { // in SQLite who begins waits for all who have begun before
		answer.Stop()
	}
	inner, err := d.sql.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelSerializable})
	if err != nil {
		return err
	}
	defer inner.Rollback() //nolint:errcheck // after a commit there is nothing to roll back
	tx := &Tx{Tx: inner}
	if queue != "" {
		answer.Reset(answerTime)
		if _, err := inner.ExecContext(ctx, queue); err != nil {
			return err
		}
	}
	answer.Reset(answerTime)
	if tx.Now, err = d.clock(ctx, inner); err != nil {
		return err
	}
	answer.Stop()
	if err := fn(ctx, tx); err != nil {
		return err
	}
	return inner.Commit()
}

// clock is the store's time, not that of the process that asks: replicas must
// agree on what has expired. With the question PostgreSQL is told to end the
// transaction of a process that it hears nothing of, so that what is locked is free
// when the network has lost one: here, and not as the connection is made, because
// poolers refuse settings then.
func (d *DB) clock(ctx context.Context, tx *sql.Tx) (time.Time, error) {
	if d.now != nil {
		return d.now().UTC().Truncate(time.Microsecond), nil
	}
	var micros int64
	err := tx.QueryRowContext(ctx, `SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
		FROM set_config('idle_in_transaction_session_timeout', $1, true)`, silence).Scan(&micros)
	return Time(micros), err
}

// Micros is a time as tables keep it; 0 for the zero time.
func Micros(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMicro()
}

// Time is the time that Micros wrote.
func Time(micros int64) time.Time {
	if micros == 0 {
		return time.Time{}
	}
	return time.UnixMicro(micros).UTC()
}

// collided reports whether a transaction was rolled back because of another one
// (PostgreSQL, appendix A, class 40), or has waited too long for it (55P03).
func collided(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && (pg.Code == "40001" || pg.Code == "40P01" || pg.Code == "55P03")
}

// queueFor is the SQL that waits for all transactions that write to a table. None of it
// fixes what its transaction sees (PostgreSQL, LOCK): that is what they have left. The
// silence is limited before the wait, for nobody may be there any more when it ends.
func queueFor(table string) string {
	return "SET LOCAL idle_in_transaction_session_timeout = " + silence + "; SET LOCAL lock_timeout = " + patience +
		"; LOCK TABLE " + pgx.Identifier{table}.Sanitize() + " IN EXCLUSIVE MODE"
}

// away marks the errors that mean that the store could not be reached or did not
// answer, and those by which it says that it is going (class 57), full of
// connections (class 53), or has given up a process that was silent (25P03).
func away(err error) error {
	if err == nil || errors.Is(err, ErrAway) {
		return err
	}
	pg, isPG := errors.AsType[*pgconn.PgError](err)
	_, isConnect := errors.AsType[*pgconn.ConnectError](err)
	_, isNet := errors.AsType[net.Error](err)
	if isConnect || isNet || isPG && (pg.Code[:2] == "57" || pg.Code[:2] == "53" || pg.Code[:2] == "08" || pg.Code == "25P03") ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, driver.ErrBadConn) || errors.Is(err, pgconn.ErrConnClosed) || errors.Is(err, sql.ErrConnDone) || errors.Is(err, sql.ErrTxDone) ||
		errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return fmt.Errorf("%w: %w", ErrAway, err)
	}
	return err
}
