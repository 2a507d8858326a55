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
	// asks is how long somebody who asks the store waits, as the gateway does.
	asks = 2 * time.Second
	// back is within what a store works again that can be reached again.
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

// ask counts once, as somebody who waits for the answer.
func ask(t *testing.T, db *sqlstore.DB) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), asks)
	defer cancel()
	return db.Do(ctx, count)
}

// comesBack asks until it is answered.
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

// Those who ask a server that resets every connection do not keep it busy with new
// ones: it would still be ending them when it could answer again.
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
	// Each of the pool's 16 may have begun before one had failed, and after that there
	// are 10 in a second. For each the driver opens three: with TLS, without, and one to
	// cancel what it has asked.
	most := 3 * (16 + 10*time.Since(begin).Seconds() + 1)
	if opened = proxy.Opened() - opened; opened == 0 || float64(opened) > most {
		t.Errorf("%d connections in %v, want 1 to %.0f", opened, time.Since(begin), most)
	}
	proxy.Mend(t)
	comesBack(t, db)
}

// What a connection that was lost has locked is free again, although the server
// does not hear of the loss.
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

// Those who were waiting for their turn when they were lost get none that they would
// hold against others.
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

// awaitWaiters returns when so many wait for a lock in this database.
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

// Whether a commit holds whose answer was lost is not known, and this one does: who
// asks again finds it, once.
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

// Connections that were lost while nobody used them are not all tried in turn.
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
	<-time.After(1500 * time.Millisecond) // none is known to have worked just now
	proxy.Lose(t)
	proxy.Mend(t)
	comesBack(t, db)
}

// More askers than there are connections, and nobody is answered: when the network
// is back, connections that were being opened stand in nobody's way.
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

// A store that works is not away for those who wait until others are done, however many
// they are and however long that takes: each has as much time as it gives itself.
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

// A store that answers everything, each time late, is not away for being asked often: on a
// connection that is known to work.
func TestASlowStoreIsNotAway(t *testing.T) {
	t.Parallel()
	db, proxy := distant(t)
	if err := db.Do(t.Context(), count); err != nil { // a connection that rests is asked whether it works, and has less time
		t.Fatal(err)
	}
	proxy.Slow(t, 350*time.Millisecond)
	// Three answers until it has begun, one to the change, one to its commit.
	if err := db.Do(t.Context(), count); err != nil {
		t.Error(err)
	}
	proxy.Mend(t)
}

// Who sets no bound does not wait for ever, and holds no connection meanwhile.
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
