package sqlstore

import (
	"context"
	"database/sql"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
)

const (
	// maxOpen is the maximum number of connections of one process to PostgreSQL.
	maxOpen = 16
	// idle is the time for which an unused connection stays open.
	idle = 5 * time.Minute
	// connectTimeout is the timeout for opening a connection if the address has no connect_timeout. The pool itself opens
	// some connections for waiting callers. Without a timeout, an attempt that gets no response would block forever.
	connectTimeout = 2 * time.Second
	// testAfter is the time after which an unused connection is tested before use. pingTimeout is the timeout of the test.
	// It is short, because many connections may be lost without notice, and callers wait for the tests.
	testAfter   = time.Second
	pingTimeout = 500 * time.Millisecond
	// postgresAnswerTimeout is the timeout for each response from PostgreSQL until a transaction has begun. No transaction
	// waits longer than lockTimeout for another one, so a server that takes longer counts as unavailable.
	postgresAnswerTimeout = 2 * time.Second
	// transactionTimeout is the maximum duration of a transaction.
	transactionTimeout = time.Minute
)

// openPostgres creates a pool of connections. It does not open a connection.
func openPostgres(source string) (*sql.DB, error) {
	cfg, err := pgx.ParseConfig(source)
	if err != nil {
		return nil, err // err wraps a cause that contains the password
	}
	if cfg.ConnectTimeout == 0 {
		cfg.ConnectTimeout = connectTimeout
	}
	db := sql.OpenDB(&connector{Connector: stdlib.GetConnector(*cfg, stdlib.OptionShouldPing(shouldPing))})
	db.SetMaxOpenConns(maxOpen)
	db.SetMaxIdleConns(maxOpen)
	db.SetConnMaxIdleTime(idle)
	return db, nil
}

// shouldPing tests a connection that was unused for longer than testAfter, and reports whether the pool must ping it
// again. If the test times out, it closes the connection, so the ping fails immediately.
func shouldPing(ctx context.Context, p stdlib.ShouldPingParams) (pingAgain bool) {
	if p.IdleDuration <= testAfter {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	return p.Conn.PgConn().Ping(ctx) != nil
}
