package sqlstore

import (
	"context"
	"database/sql"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
)

const (
	// maxOpen is how many connections to PostgreSQL one process has.
	maxOpen = 16
	// idle is how long an unused connection stays open.
	idle = 5 * time.Minute
	// connectTime is how long opening a connection may take if the address has no connect_timeout. The pool opens some
	// connections by itself for waiting callers, and one without an answer would block forever.
	connectTime = 2 * time.Second
	// stale is how long a connection may be unused before it is tested, and pingTime how long the test may take. Many
	// connections may be lost silently, and callers wait for the tests.
	stale    = time.Second
	pingTime = 500 * time.Millisecond
	// answerTime is how long each answer may take until a transaction has begun: no transaction waits longer than
	// patience for another one, so a slower store is unavailable.
	answerTime = 2 * time.Second
	// transactionTime is how long a transaction may take.
	transactionTime = time.Minute
)

// openPostgres creates a pool of connections, without opening one.
func openPostgres(source string) (*sql.DB, error) {
	cfg, err := pgx.ParseConfig(source)
	if err != nil {
		return nil, err // the cause contains the password
	}
	if cfg.ConnectTimeout == 0 {
		cfg.ConnectTimeout = connectTime
	}
	db := sql.OpenDB(&connector{Connector: stdlib.GetConnector(*cfg, stdlib.OptionShouldPing(works))})
	db.SetMaxOpenConns(maxOpen)
	db.SetMaxIdleConns(maxOpen)
	db.SetConnMaxIdleTime(idle)
	return db, nil
}

// works tests a connection that was not used lately. A lost connection has been closed by then, which the ping
// notices at once.
func works(ctx context.Context, p stdlib.ShouldPingParams) (pingAgain bool) {
	if p.IdleDuration <= stale {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, pingTime)
	defer cancel()
	return p.Conn.PgConn().Ping(ctx) != nil
}
