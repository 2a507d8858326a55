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
	// idle is how long an unused connection stays open.
	idle = 5 * time.Minute
	// connectTimeout is how long opening a connection may take if the address has no connect_timeout. The pool itself
	// opens some connections for waiting callers. Without a limit, an attempt without an answer would block forever.
	connectTimeout = 2 * time.Second
	// testAfter is how long a connection may be unused before it is tested. pingTimeout is how long the test may take. The
	// timeout is short, because many connections may be lost without a notice, and callers wait for the tests.
	testAfter   = time.Second
	pingTimeout = 500 * time.Millisecond
	// answerTimeout is how long the store may take for each answer until a transaction has begun. No transaction waits
	// longer than lockTimeout for another one, so a store that takes longer counts as unavailable.
	answerTimeout = 2 * time.Second
	// transactionTimeout is how long a transaction may take.
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

// shouldPing tests a connection that was unused for longer than testAfter, and reports whether the pool must ping it
// again. If the test times out, it has closed the connection, so the ping fails immediately.
func shouldPing(ctx context.Context, p stdlib.ShouldPingParams) (pingAgain bool) {
	if p.IdleDuration <= testAfter {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	return p.Conn.PgConn().Ping(ctx) != nil
}
