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
	// asks is how long a caller of the store waits, as the gateway does.
	asks = 2 * time.Second
	// back is the time within which a store works after it is reachable again.
	back = 5 * time.Second
)

// distant is a store with one counter, behind a network.
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

// ask counts once, like a caller that waits for the answer.
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

// Callers of a server that resets every connection do not keep it busy with new ones: otherwise it would still be
// ending them when it could answer again.
func TestWhoAsksAFailingServerDoesNotFloodIt(t *testing.T) {
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
	// Each of the pool's 16 connections may have begun before one had failed, and after that there are 10 in a second.
	// For each the driver opens three: with TLS, without, and one to cancel the query.
	most := 3 * (16 + 10*time.Since(begin).Seconds() + 1)
	if opened = proxy.Opened() - opened; opened == 0 || float64(opened) > most {
		t.Errorf("%d connections in %v, want 1 to %.0f", opened, time.Since(begin), most)
	}
	proxy.Mend(t)
	comesBack(t, db)
}

// The locks of a lost connection are released, although the server does not notice the loss.
func TestALostTransactionLeavesNoLock(t *testing.T) {
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

// Transactions that were lost while they waited get no locks that they would hold against others.
func TestLostWaitersHaveNoTurn(t *testing.T) {
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

// awaitWaiters returns when that many transactions wait for a lock in this database.
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

// If the answer to a commit is lost, it is unknown whether the change was made; here it was, and a repetition finds
// it, once.
func TestACommitWhoseAnswerIsLost(t *testing.T) {
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

// Connections that were lost while unused are not all tried one after the other.
func TestLostConnectionsAreReplaced(t *testing.T) {
	t.Parallel()
	db, proxy := distant(t)
	const many = 16
	var ready, wg sync.WaitGroup
	ready.Add(many)
	for range many {
		wg.Go(func() {
			if err := db.Look(t.Context(), func(context.Context, *sqlstore.Tx) error {
				ready.Done()
				ready.Wait() // each has a connection of its own
				return nil
			}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	<-time.After(1500 * time.Millisecond) // none was used recently
	proxy.Lose(t)
	proxy.Mend(t)
	comesBack(t, db)
}

// There are more callers than connections, and none gets an answer: when the network is back, connections that were
// being opened block no caller.
func TestManyWhoAskASilentStore(t *testing.T) {
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

// A working store is not unavailable for callers that wait until others are done, however many they are and however
// long that takes: each waits as long as its own deadline.
func TestWhoWaitsForOthersIsNotTurnedAway(t *testing.T) {
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
				<-time.After(40 * time.Millisecond) // as on a busy machine
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

// A store that answers everything late is not unavailable because there are many queries, on a connection that is
// known to work.
func TestASlowStoreIsNotAway(t *testing.T) {
	t.Parallel()
	db, proxy := distant(t)
	if err := db.Do(t.Context(), count); err != nil { // an idle connection is tested, with less time
		t.Fatal(err)
	}
	proxy.Slow(t, 350*time.Millisecond)
	// Three answers until it has begun, one to the change, one to its commit.
	if err := db.Do(t.Context(), count); err != nil {
		t.Error(err)
	}
	proxy.Mend(t)
}

// A caller without a deadline does not wait forever, and holds no connection meanwhile.
func TestWhoSetsNoBoundIsTold(t *testing.T) {
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
