package sqlstore

import (
	"context"
	"database/sql"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
)

const (
	// maxOpen limits how many connections one process opens to PostgreSQL.
	maxOpen = 16
	// idle is how long an unused connection stays open.
	idle = 5 * time.Minute
	// connectTimeout is the timeout for opening a connection if the URL contains no connect_timeout. The pool opens
	// some connections in the background for waiting callers. Without a timeout, such an attempt would block forever if
	// the server does not respond.
	connectTimeout = 2 * time.Second
	// testAfter is how long a connection may be unused before it must be tested. pingTimeout is the timeout of the
	// test. The timeout is short, because many connections may have been lost without notice, and callers wait for the
	// tests.
	testAfter   = time.Second
	pingTimeout = 500 * time.Millisecond
	// postgresAnswerTimeout is the timeout for each response from PostgreSQL until a transaction has begun. No
	// transaction waits longer than lockTimeout for another transaction. Therefore a server that takes longer than
	// postgresAnswerTimeout is treated as unavailable.
	postgresAnswerTimeout = 2 * time.Second
	// transactionTimeout limits the duration of a transaction.
	transactionTimeout = time.Minute
)

// openPostgres creates a pool of connections. It does not open a connection yet.
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

// shouldPing tests a connection that has been unused for longer than testAfter, and reports whether the pool must ping
// the connection as well. If the test times out, shouldPing closes the connection, so that the ping fails immediately.
func shouldPing(ctx context.Context, p stdlib.ShouldPingParams) (pingAgain bool) {
	if p.IdleDuration <= testAfter {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	return p.Conn.PgConn().Ping(ctx) != nil
}
