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

// Tx is a transaction. All its statements see the same state of the store.
type Tx struct {
	*sql.Tx
	// Now is the store's time when the transaction began, with a precision of microseconds.
	Now time.Time

	committed []func()
}

// OnCommit registers a function that is called after the transaction was committed. The function is not called if the
// transaction is rolled back, or if it is not known whether it was committed.
func (tx *Tx) OnCommit(do func()) { tx.committed = append(tx.committed, do) }

// Each calls read for every row of a query. It stops when read returns an error.
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

// These are timeouts of PostgreSQL, in milliseconds.
//
// silenceTimeout is how long a process may send nothing during a transaction before PostgreSQL ends the transaction. It
// equals postgresAnswerTimeout.
//
// lockTimeout is how long a transaction waits in the queue before it returns to the end of the queue. Therefore a
// process that has lost its network connection blocks other processes only for a short time.
const (
	silenceTimeout = "2000"
	lockTimeout    = "1000"
)

// firstPause and lastPause are the minimum and the maximum of the pause between two attempts. The pause is random.
const (
	firstPause = 2 * time.Millisecond
	lastPause  = 100 * time.Millisecond
)

// Do runs fn in a serializable transaction and commits the transaction if fn returns nil. If there is a queue, Do first
// waits for earlier transactions. If the transaction conflicts with another one, Do runs fn again, so fn must have no
// effects outside the transaction, except by [Tx.OnCommit]. Do returns the error from fn, or [ErrUnavailable] if the store is unavailable or ctx
// is done. A transaction takes at most a minute, even if ctx allows more time.
func (d *DB) Do(ctx context.Context, fn func(ctx context.Context, tx *Tx) error) error {
	return d.do(ctx, d.queue, fn)
}

// DoUnqueued is like [DB.Do], but for a function that rarely changes data. It waits for other transactions only after
// it has conflicted with one of them.
func (d *DB) DoUnqueued(ctx context.Context, fn func(ctx context.Context, tx *Tx) error) error {
	return d.do(ctx, "", fn)
}

func (d *DB) do(ctx context.Context, queue string, fn func(ctx context.Context, tx *Tx) error) error {
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		err := d.runOnce(ctx, queue, fn)
		if !collided(err) {
			return wrapUnavailable(err)
		}
		queue = d.queue
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ErrUnavailable, ctx.Err())
		case <-time.After(rand.N(pause)): //nolint:gosec // this is not a secret
		}
	}
}

// acquire waits for a free connection until ctx is done. It has no other timeout, because the store is available even
// if all connections are in use. The caller must call the returned function when it no longer needs the connection.
func (d *DB) acquire(ctx context.Context) (end func(), err error) {
	if d.slots == nil {
		return func() {}, nil
	}
	select {
	case d.slots <- struct{}{}:
		return func() { <-d.slots }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// runOnce runs fn in a transaction. If queue is not empty, it is SQL that the transaction executes before fn.
func (d *DB) runOnce(ctx context.Context, queue string, fn func(ctx context.Context, tx *Tx) error) error {
	end, err := d.acquire(ctx)
	if err != nil {
		return err
	}
	defer end()
	ctx, giveUp := context.WithTimeout(ctx, transactionTimeout)
	defer giveUp()
	answer := time.AfterFunc(d.answerTimeout, giveUp)
	defer answer.Stop()
	inner, err := d.sql.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelSerializable})
	if err != nil {
		return err
	}
	defer inner.Rollback() //nolint:errcheck // after Commit there is nothing to roll back
	tx := &Tx{Tx: inner}
	if queue != "" {
		answer.Reset(d.answerTimeout)
		if _, err := inner.ExecContext(ctx, queue); err != nil {
			return err
		}
	}
	answer.Reset(d.answerTimeout)
	if tx.Now, err = d.clock(ctx, inner); err != nil {
		return err
	}
	answer.Stop()
	if err := fn(ctx, tx); err != nil {
		return err
	}
	if err := inner.Commit(); err != nil {
		return err
	}
	for _, do := range tx.committed {
		do()
	}
	return nil
}

// clock returns the store's time. It does not use the clock of this process, because replicas must agree on which
// records have expired. The query also sets a timeout. If this process sends nothing for longer than the timeout,
// PostgreSQL ends the transaction. Therefore a process that has lost its network connection does not keep its locks.
// The timeout is not set when the connection is opened, because connection poolers refuse that.
func (d *DB) clock(ctx context.Context, tx *sql.Tx) (time.Time, error) {
	if d.now != nil {
		return d.now().UTC().Truncate(time.Microsecond), nil
	}
	var micros int64
	err := tx.QueryRowContext(ctx, `SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
		FROM set_config('idle_in_transaction_session_timeout', $1, true)`, silenceTimeout).Scan(&micros)
	return Time(micros), err
}

// Micros converts a time to the number that tables store. It returns 0 for the zero time.
func Micros(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMicro()
}

// Time converts a number that [Micros] returned back to a time.
func Time(micros int64) time.Time {
	if micros == 0 {
		return time.Time{}
	}
	return time.UnixMicro(micros).UTC()
}

// collided reports whether PostgreSQL rolled back a transaction because of a conflict with another transaction
// (PostgreSQL, appendix A, class 40), or because the transaction waited too long for a lock (55P03).
func collided(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && (pg.Code == "40001" || pg.Code == "40P01" || pg.Code == "55P03")
}

// queueFor returns SQL that waits for all transactions that write to a table. LOCK does not set the snapshot of the
// transaction (PostgreSQL, LOCK), so the transaction sees the changes of earlier transactions. The idle timeout is set
// before the wait, because the process might lose its connection during the wait.
func queueFor(table string) string {
	return "SET LOCAL idle_in_transaction_session_timeout = " + silenceTimeout + "; SET LOCAL lock_timeout = " + lockTimeout +
		"; LOCK TABLE " + pgx.Identifier{table}.Sanitize() + " IN EXCLUSIVE MODE"
}

// wrapUnavailable wraps an error in [ErrUnavailable] if the error means that the store is unavailable. This is the case
// if the store could not be reached (class 08), did not respond, is shutting down (class 57) or has too many
// connections (class 53). It is also the case if the store has ended the transaction because this process sent nothing
// (25P03).
func wrapUnavailable(err error) error {
	if err == nil || errors.Is(err, ErrUnavailable) {
		return err
	}
	pg, isPG := errors.AsType[*pgconn.PgError](err)
	_, isConnect := errors.AsType[*pgconn.ConnectError](err)
	_, isNet := errors.AsType[net.Error](err)
	if isConnect || isNet || isPG && (pg.Code[:2] == "57" || pg.Code[:2] == "53" || pg.Code[:2] == "08" || pg.Code == "25P03") ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, driver.ErrBadConn) || errors.Is(err, pgconn.ErrConnClosed) || errors.Is(err, sql.ErrConnDone) || errors.Is(err, sql.ErrTxDone) ||
		errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return err
}
