package sqlstore_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/e2e/network"
	"github.com/sluice-mesh/sluice/services/internal/sqlstore"
	"github.com/sluice-mesh/sluice/services/internal/sqlstore/sqlstoretest"
)

const (
	// asks is how long a caller of the store waits, as in the gateway.
	asks = 2 * time.Second
	// back is the time within which a store must work after it can be reached again.
	back = 5 * time.Second
)

// distant returns a store with one counter, and the network between the test and the store.
func distant(t *testing.T) (*sqlstore.DB, *network.Proxy) {
	t.Helper()
	server := sqlstoretest.Start(t)
	proxy := network.Start(t, server.Addr())
	db := open(t, sqlstore.Config{Source: server.Through(proxy.Addr, server.Database(t)), Queue: "counters"}, counters)
	if err := db.Do(t.Context(), insert); err != nil {
		t.Fatal(err)
	}
	return db, proxy
}

func count(ctx context.Context, tx *sqlstore.Tx) error {
	_, err := tx.ExecContext(ctx, "UPDATE counters SET n = n - 1")
	return err
}

// ask adds 1 to the counter, with the deadline of a caller.
func ask(t *testing.T, db *sqlstore.DB) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), asks)
	defer cancel()
	return db.Do(ctx, count)
}

// comesBack calls ask until it succeeds.
func comesBack(t *testing.T, db *sqlstore.DB) {
	t.Helper()
	begin := time.Now()
	for {
		err := ask(t, db)
		took := time.Since(begin)
		switch {
		case err == nil && took <= back:
			t.Logf("it works again after %v", took.Round(time.Millisecond))
			return
		case took > back:
			t.Fatalf("after %v: %v", took, err)
		case !errors.Is(err, sqlstore.ErrAway):
			t.Fatal(err)
		}
		<-time.After(10 * time.Millisecond)
	}
}

// While a server resets every connection, its callers open few new ones. Otherwise the server would still be busy
// with ending them when it could work again.
func TestDo_LimitsAttemptsWhenServerResetsConnections(t *testing.T) {
	t.Parallel()
	db, proxy := distant(t)
	proxy.Reset(t)
	opened := proxy.Opened()
	begin := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), asks)
	defer cancel()
	var asking sync.WaitGroup
	for range 20 {
		asking.Go(func() {
			for ctx.Err() == nil {
				if err := db.Do(ctx, count); err == nil {
					t.Error("a server that resets every connection has answered")
				}
			}
		})
	}
	asking.Wait()
	// The pool has 16 connections. Each may have begun to connect before the first one failed. After that there are
	// 10 attempts in a second. For each attempt, the driver opens three connections: with TLS, without TLS, and to
	// cancel the query.
	most := 3 * (16 + 10*time.Since(begin).Seconds() + 1)
	if opened = proxy.Opened() - opened; opened == 0 || float64(opened) > most {
		t.Errorf("%d connections in %v, want 1 to %.0f", opened, time.Since(begin), most)
	}
	proxy.Mend(t)
	comesBack(t, db)
}

// The locks of a lost connection are released although the server does not notice the loss.
func TestDo_LostTransactionReleasesLocks(t *testing.T) {
	t.Parallel()
	db, proxy := distant(t)
	ctx, cancel := context.WithTimeout(t.Context(), asks)
	defer cancel()
	err := db.Do(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		err := count(ctx, tx)
		proxy.Lose(t)
		return err
	})
	if !errors.Is(err, sqlstore.ErrAway) {
		t.Errorf("a commit that is lost: %v", err)
	}
	proxy.Mend(t)
	comesBack(t, db)
	if n, _ := read(t, db); n != 1<<62-1 {
		t.Errorf("it counted to %d: what was never committed is there", n)
	}
}

// A transaction that is lost while it waits does not get the lock, so it can't hold the lock against others.
func TestDo_LostWaitersGetNoLocks(t *testing.T) {
	t.Parallel()
	db, proxy := distant(t)
	const many = 12
	begun, wg := make(chan struct{}), sync.WaitGroup{}
	ctx, cancel := context.WithTimeout(t.Context(), asks)
	defer cancel()
	wg.Go(func() {
		err := db.Do(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
			close(begun)
			awaitWaiters(ctx, t, tx, many)
			proxy.Lose(t)
			return count(ctx, tx)
		})
		if !errors.Is(err, sqlstore.ErrAway) {
			t.Errorf("who was first: %v", err)
		}
	})
	<-begun
	for range many {
		wg.Go(func() {
			if err := db.Do(ctx, count); !errors.Is(err, sqlstore.ErrAway) {
				t.Errorf("who waited: %v", err)
			}
		})
	}
	wg.Wait()
	proxy.Mend(t)
	comesBack(t, db)
}

// awaitWaiters returns when the given number of transactions waits for a lock in this database.
func awaitWaiters(ctx context.Context, t *testing.T, tx *sqlstore.Tx, many int) {
	t.Helper()
	for n := 0; n < many; {
		err := tx.QueryRowContext(ctx, `SELECT count(*) FROM pg_locks
			WHERE NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`).Scan(&n)
		if err != nil {
			t.Errorf("count who waits: %v", err)
			return
		}
	}
}

// If the answer to a commit is lost, it is unknown whether the change was made. In this test it was made, and a
// repetition finds that out.
func TestDo_ReportsErrAwayWhenCommitAnswerIsLost(t *testing.T) {
	t.Parallel()
	db, proxy := distant(t)
	proxy.LoseCommits(t)
	if err := ask(t, db); !errors.Is(err, sqlstore.ErrAway) {
		t.Errorf("told %v", err)
	}
	proxy.Mend(t)
	if n, _ := read(t, db); n != 1<<62-1 {
		t.Errorf("it counted to %d", n)
	}
}

// If unused connections were lost, they are not all tried one after the other.
func TestDo_ReplacesLostConnections(t *testing.T) {
	t.Parallel()
	db, proxy := distant(t)
	const many = 16
	var ready, wg sync.WaitGroup
	ready.Add(many)
	for range many {
		wg.Go(func() {
			if err := db.Look(t.Context(), func(context.Context, *sqlstore.Tx) error {
				ready.Done()
				ready.Wait() // each goroutine has a separate connection
				return nil
			}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	<-time.After(1500 * time.Millisecond) // all connections are unused for longer than stale
	proxy.Lose(t)
	proxy.Mend(t)
	comesBack(t, db)
}

// There are more callers than connections, and no connection gets an answer. When the network works again,
// connections that were being opened must not block a caller.
func TestDo_RecoversWhenManyCallersWaited(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func(*network.Proxy){
		"silent":  func(p *network.Proxy) { p.Silence(t) },
		"lost":    func(p *network.Proxy) { p.Lose(t) },
		"refused": func(p *network.Proxy) { p.Refuse(t) },
		"reset":   func(p *network.Proxy) { p.Reset(t) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, proxy := distant(t)
			fail(proxy)
			var wg sync.WaitGroup
			begin := time.Now()
			for range 50 {
				wg.Go(func() {
					if err := ask(t, db); !errors.Is(err, sqlstore.ErrAway) {
						t.Errorf("while it is away: %v", err)
					}
				})
			}
			wg.Wait()
			t.Logf("told after %v", time.Since(begin).Round(time.Millisecond))
			proxy.Mend(t)
			comesBack(t, db)
		})
	}
}

// If many callers wait for each other for a long time, the store does not count as unavailable. Each caller waits
// until its own deadline.
func TestDo_WaitsForOtherTransactions(t *testing.T) {
	t.Parallel()
	db, _ := distant(t)
	const many = 60
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var wg sync.WaitGroup
	begin := time.Now()
	for range many {
		wg.Go(func() {
			err := db.Do(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
				<-time.After(40 * time.Millisecond) // like on a busy machine
				return count(ctx, tx)
			})
			if err != nil {
				t.Errorf("after %v: %v", time.Since(begin).Round(time.Millisecond), err)
			}
		})
	}
	wg.Wait()
	if n, _ := read(t, db); n != 1<<62-many {
		t.Errorf("it counted to %d", n)
	}
}

// A store whose every answer is late does not count as unavailable because a transaction has many queries.
func TestDo_AcceptsSlowStore(t *testing.T) {
	t.Parallel()
	db, proxy := distant(t)
	if err := db.Do(t.Context(), count); err != nil { // an unused connection is tested first, which has a shorter timeout
		t.Fatal(err)
	}
	proxy.Slow(t, 350*time.Millisecond)
	// Beginning the transaction takes three answers, the change one, and the commit one.
	if err := db.Do(t.Context(), count); err != nil {
		t.Error(err)
	}
	proxy.Mend(t)
}

// A caller without a deadline gets an error after a while, and its connection is free again.
func TestDo_FailsWithoutDeadlineWhenStoreIsSilent(t *testing.T) {
	t.Parallel()
	db, proxy := distant(t)
	proxy.Silence(t)
	told := make(chan error, 1)
	go func() { told <- db.Do(t.Context(), count) }()
	select {
	case err := <-told:
		if !errors.Is(err, sqlstore.ErrAway) {
			t.Errorf("told %v", err)
		}
	case <-time.After(20 * time.Second):
		t.Error("nobody is told anything")
	}
	proxy.Mend(t)
	comesBack(t, db)
}
