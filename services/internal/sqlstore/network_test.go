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
	// callerTimeout is how long a caller in these tests waits for the store. The gateway has the same timeout.
	callerTimeout = 2 * time.Second
	// recoveryTime is the time within which a store must work again after it has become available again.
	recoveryTime = 5 * time.Second
)

// newProxiedStore returns a store that contains one counter, and a proxy that simulates the network between the test
// and the store.
func newProxiedStore(t *testing.T) (*sqlstore.DB, *network.Proxy) {
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

// countOnce decreases the counter by one, and allows the store as much time as callers do.
func countOnce(t *testing.T, db *sqlstore.DB) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), callerTimeout)
	defer cancel()
	return db.Do(ctx, count)
}

func waitUntilAvailable(t *testing.T, db *sqlstore.DB) {
	t.Helper()
	begin := time.Now()
	for {
		err := countOnce(t, db)
		took := time.Since(begin)
		switch {
		case err == nil && took <= recoveryTime:
			t.Logf("the store works again after %v", took.Round(time.Millisecond))
			return
		case took > recoveryTime:
			t.Fatalf("after %v: %v", took, err)
		case !errors.Is(err, sqlstore.ErrUnavailable):
			t.Fatal(err)
		}
		<-time.After(10 * time.Millisecond)
	}
}

// A server resets every connection. Meanwhile, callers may open only a few new connections. Otherwise the server would
// still be busy closing connections when it works again.
func TestDo_LimitsAttemptsWhenServerResetsConnections(t *testing.T) {
	t.Parallel()
	db, proxy := newProxiedStore(t)
	proxy.Reset(t)
	opened := proxy.OpenedConnections()
	begin := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), callerTimeout)
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
	// The pool has 16 connections. Each of them may have begun to connect before the first attempt failed. After the
	// first failure, there are 10 attempts per second. For each attempt, the driver opens three connections: one with
	// TLS, one without TLS, and one to cancel the query.
	most := 3 * (16 + 10*time.Since(begin).Seconds() + 1)
	if opened = proxy.OpenedConnections() - opened; opened == 0 || float64(opened) > most {
		t.Errorf("%d connections in %v, want 1 to %.0f", opened, time.Since(begin), most)
	}
	proxy.EndFault(t)
	waitUntilAvailable(t, db)
}

// A connection is lost during a transaction, and the server does not notice the loss. The locks of the transaction are
// released.
func TestDo_LostTransactionReleasesLocks(t *testing.T) {
	t.Parallel()
	db, proxy := newProxiedStore(t)
	ctx, cancel := context.WithTimeout(t.Context(), callerTimeout)
	defer cancel()
	err := db.Do(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		err := count(ctx, tx)
		proxy.DropSilently(t)
		return err
	})
	if !errors.Is(err, sqlstore.ErrUnavailable) {
		t.Errorf("a commit that is lost: %v", err)
	}
	proxy.EndFault(t)
	waitUntilAvailable(t, db)
	if n, _ := read(t, db); n != 1<<62-1 {
		t.Errorf("the counter is %d: it contains a change that was never committed", n)
	}
}

// The connection of a transaction is lost while the transaction waits for a lock. The transaction never gets the lock,
// so it can't block other transactions.
func TestDo_LostWaitersGetNoLocks(t *testing.T) {
	t.Parallel()
	db, proxy := newProxiedStore(t)
	const many = 12
	begun, wg := make(chan struct{}), sync.WaitGroup{}
	ctx, cancel := context.WithTimeout(t.Context(), callerTimeout)
	defer cancel()
	wg.Go(func() {
		err := db.Do(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
			close(begun)
			awaitWaiters(ctx, t, tx, many)
			proxy.DropSilently(t)
			return count(ctx, tx)
		})
		if !errors.Is(err, sqlstore.ErrUnavailable) {
			t.Errorf("the first transaction: %v", err)
		}
	})
	<-begun
	for range many {
		wg.Go(func() {
			if err := db.Do(ctx, count); !errors.Is(err, sqlstore.ErrUnavailable) {
				t.Errorf("a waiting transaction: %v", err)
			}
		})
	}
	wg.Wait()
	proxy.EndFault(t)
	waitUntilAvailable(t, db)
}

// awaitWaiters returns when the given number of transactions are waiting for a lock in this database.
func awaitWaiters(ctx context.Context, t *testing.T, tx *sqlstore.Tx, many int) {
	t.Helper()
	for n := 0; n < many; {
		err := tx.QueryRowContext(ctx, `SELECT count(*) FROM pg_locks
			WHERE NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`).Scan(&n)
		if err != nil {
			t.Errorf("count waiting transactions: %v", err)
			return
		}
	}
}

// The response to a commit is lost, so the caller does not know whether the change was made. In this test the change
// was made. The test finds this out by reading the counter.
func TestDo_ReportsErrAwayWhenCommitAnswerIsLost(t *testing.T) {
	t.Parallel()
	db, proxy := newProxiedStore(t)
	proxy.DropCommitResponses(t)
	if err := countOnce(t, db); !errors.Is(err, sqlstore.ErrUnavailable) {
		t.Errorf("told %v", err)
	}
	proxy.EndFault(t)
	if n, _ := read(t, db); n != 1<<62-1 {
		t.Errorf("the counter is %d", n)
	}
}

// Many unused connections are lost. The store becomes available again soon, because it does not test the connections
// one after the other.
func TestDo_ReplacesLostConnections(t *testing.T) {
	t.Parallel()
	db, proxy := newProxiedStore(t)
	const many = 16
	var ready, wg sync.WaitGroup
	ready.Add(many)
	for range many {
		wg.Go(func() {
			if err := db.DoUnqueued(t.Context(), func(context.Context, *sqlstore.Tx) error {
				ready.Done()
				ready.Wait() // each goroutine has its own connection
				return nil
			}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	<-time.After(1500 * time.Millisecond) // all connections are unused for longer than testAfter
	proxy.DropSilently(t)
	proxy.EndFault(t)
	waitUntilAvailable(t, db)
}

// There are more callers than connections, and PostgreSQL can't be reached. When the network works again, no caller is
// blocked by a connection that was being opened during the failure.
func TestDo_RecoversWhenManyCallersWaited(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func(*network.Proxy){
		"silent":  func(p *network.Proxy) { p.Silence(t) },
		"lost":    func(p *network.Proxy) { p.DropSilently(t) },
		"refused": func(p *network.Proxy) { p.Refuse(t) },
		"reset":   func(p *network.Proxy) { p.Reset(t) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, proxy := newProxiedStore(t)
			fail(proxy)
			var wg sync.WaitGroup
			begin := time.Now()
			for range 50 {
				wg.Go(func() {
					if err := countOnce(t, db); !errors.Is(err, sqlstore.ErrUnavailable) {
						t.Errorf("while the store is unavailable: %v", err)
					}
				})
			}
			wg.Wait()
			t.Logf("told after %v", time.Since(begin).Round(time.Millisecond))
			proxy.EndFault(t)
			waitUntilAvailable(t, db)
		})
	}
}

// Many callers wait for each other's transactions for a long time. The store is not treated as unavailable, and no
// caller gets an error before its own deadline.
func TestDo_WaitsForOtherTransactions(t *testing.T) {
	t.Parallel()
	db, _ := newProxiedStore(t)
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
		t.Errorf("the counter is %d", n)
	}
}

// The timeout applies to each query, not to the transaction. A slow store is not treated as unavailable merely because
// a transaction needs several queries.
func TestDo_AcceptsSlowStore(t *testing.T) {
	t.Parallel()
	db, proxy := newProxiedStore(t)
	if err := db.Do(t.Context(), count); err != nil { // the store first tests an unused connection, and that test has a shorter timeout
		t.Fatal(err)
	}
	proxy.Delay(t, 350*time.Millisecond)
	// The transaction waits for five responses from the store: three to begin, one for the change, and one for the
	// commit.
	if err := db.Do(t.Context(), count); err != nil {
		t.Error(err)
	}
	proxy.EndFault(t)
}

// The store does not respond to a caller that has no deadline. After a timeout, the caller receives an error, and its
// connection can be used again.
func TestDo_FailsWithoutDeadlineWhenStoreIsSilent(t *testing.T) {
	t.Parallel()
	db, proxy := newProxiedStore(t)
	proxy.Silence(t)
	errs := make(chan error, 1)
	go func() { errs <- db.Do(t.Context(), count) }()
	select {
	case err := <-errs:
		if !errors.Is(err, sqlstore.ErrUnavailable) {
			t.Errorf("told %v", err)
		}
	case <-time.After(20 * time.Second):
		t.Error("no caller got an error")
	}
	proxy.EndFault(t)
	waitUntilAvailable(t, db)
}
