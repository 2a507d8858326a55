package sqlstore

import (
	"context"
	"database/sql"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
)

const (
	// maxOpen is how many connections to PostgreSQL one process keeps.
	maxOpen = 16
	// idle is how long an unused connection is kept.
	idle = 5 * time.Minute
	// connectTime bounds opening a connection, where the address says nothing of
	// connect_timeout. The pool opens some of its own accord, for whoever waits, and
	// one that no answer comes to would be in the way for ever.
	connectTime = 2 * time.Second
	// stale is how long a connection may be unused before it is asked whether it
	// still works, and pingTime how long it may take to say so. Of connections that
	// were lost without a word there may be many, and somebody waits.
	stale    = time.Second
	pingTime = 500 * time.Millisecond
	// answerTime bounds each answer until a transaction has begun: none waits longer
	// than patience for another transaction, so a store that takes longer is away.
	answerTime = 2 * time.Second
	// transactionTime bounds a transaction as a whole.
	transactionTime = time.Minute
)

// openPostgres opens a pool of connections, none of which is made yet.
func openPostgres(source string) (*sql.DB, error) {
	cfg, err := pgx.ParseConfig(source)
	if err != nil {
		return nil, err // it hides the password
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

// works asks a connection that was not used lately whether it works. Where it does
// not it is closed by then, which the ping that is asked for finds out at once.
func works(ctx context.Context, p stdlib.ShouldPingParams) (pingAgain bool) {
	if p.IdleDuration <= stale {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, pingTime)
	defer cancel()
	return p.Conn.PgConn().Ping(ctx) != nil
}
