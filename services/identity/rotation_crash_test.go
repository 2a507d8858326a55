package identity_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-mesh/sluice/services/internal/norace"
	"github.com/sluice-mesh/sluice/services/internal/oauthtest"
)

// crashPoint is a point of a refresh at which the replica is killed. The lease is also the record that the refresh token
// may have been sent: both are one change of one row.
type crashPoint int

const (
	// beforeLease is before anything is stored.
	beforeLease crashPoint = iota
	// duringLease is before the change with the lease is complete on disk.
	duringLease
	// afterLease is before the request with the refresh token is sent.
	afterLease
	// afterRequest is after the request was sent. In half of the cases, the authorization server has already used the
	// refresh token.
	afterRequest
	// afterResponse is after the new tokens have arrived, and before they are stored.
	afterResponse
	// afterStorage is after the new tokens are stored, and before the gateway has received the access token.
	afterStorage
)

var crashPoints = map[string]crashPoint{
	"before the lease": beforeLease, "during the lease": duringLease, "after the lease": afterLease,
	"after the request": afterRequest, "after the response": afterResponse, "after the storage": afterStorage,
}

// crash is one refresh during which a replica is killed. Its fields are chosen by a seed.
type crash struct {
	point crashPoint
	// isProcessed is true if the authorization server has used the refresh token before the replica is killed.
	isProcessed bool
	// grace is how long the authorization server accepts a used refresh token again.
	grace time.Duration
	// rotations is the number of refreshes before the crash. left is the remaining lifetime of the access token at the
	// crash, which is negative if the token has expired. delay is the time from the crash to the first request to the next
	// replica. callers is the number of gateways that ask the killed replica.
	rotations   int
	left, delay time.Duration
	callers     int
	// cut is the part of the lease that is on disk if the replica is killed during the change, from 0 to 1.
	cut float64

	mu sync.Mutex
	// armed is true if the next refresh is the one during which the replica is killed. kill makes sure that what the
	// replica does afterwards has no effect. dead is closed after that.
	armed bool
	kill  func()
	dead  chan struct{}
}

func newCrash(point crashPoint, seed uint64) *crash {
	rnd := rand.New(rand.NewPCG(seed, uint64(point)))
	c := &crash{
		point: point, rotations: rnd.IntN(3), left: time.Second + below(rnd, rotatedBefore-2*time.Second),
		delay: below(rnd, 45*time.Second), callers: 1 + rnd.IntN(3), cut: rnd.Float64(), dead: make(chan struct{}),
	}
	if rnd.IntN(5) == 0 {
		c.left = -below(rnd, time.Hour)
	}
	if rnd.IntN(2) == 0 {
		c.grace = 2 * time.Minute
	}
	c.isProcessed = point > afterRequest || point == afterRequest && rnd.IntN(2) == 0
	return c
}

func below(rnd *rand.Rand, limit time.Duration) time.Duration {
	return time.Duration(rnd.Int64N(int64(limit)))
}

func (c *crash) String() string {
	return fmt.Sprintf("point %d, processed %t, grace %v, %d rotations before, %v left, next request after %v, %d callers", c.point, c.isProcessed, c.grace, c.rotations, c.left, c.delay, c.callers)
}

// isLeased reports whether the killed replica has the lease.
func (c *crash) isLeased() bool { return c.point >= afterLease && c.point < afterStorage }

// isLost reports whether only the killed replica has received the new refresh token.
func (c *crash) isLost() bool { return c.isProcessed && c.point < afterStorage }

// hook is the [oauthtest.Hook] of the replica that is killed. A killed replica sends and receives nothing.
func (c *crash) hook(at oauthtest.Stage) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.isDead() {
		return oauthtest.ErrClosed
	}
	isHere := at == oauthtest.Received && !c.isProcessed || at == oauthtest.Processed && c.isProcessed
	if !c.armed || !isHere || c.point == beforeLease || c.point == afterStorage {
		return nil
	}
	c.kill()
	close(c.dead)
	if c.point == afterResponse {
		return nil
	}
	return oauthtest.ErrClosed
}

// end kills the replica unless it is dead.
func (c *crash) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.isDead() {
		c.kill()
		close(c.dead)
	}
}

func (c *crash) isDead() bool {
	select {
	case <-c.dead:
		return true
	default:
		return false
	}
}

// A replica is killed at each point of a refresh, and the next replica continues with what is on disk. The refresh token
// is used once if the killed replica has not used it, or if its response was stored. Otherwise the next replica tries it
// once more, after the lease has ended. If the authorization server does not accept it again, one sign-in is required,
// and no more requests are sent before it.
func TestRotation_SeededCrashesOfAReplica(t *testing.T) {
	t.Parallel()
	imported := importedStore(t, "sqlite")
	for name, point := range crashPoints {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(norace.Some(200)) {
				runCrash(t, imported, point, seed)
			}
		})
	}
}

// runCrash runs one crash with SQLite, in virtual time. imported is the data directory of importedStore.
func runCrash(t *testing.T, imported string, point crashPoint, seed uint64) {
	t.Helper()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		c := newCrash(point, seed)
		one, two := filepath.Join(dir, "one"), filepath.Join(dir, "two")
		if err := copyStore(imported, one, math.MaxInt64); err != nil {
			t.Fatal(err)
		}
		server := &oauthtest.Server{Life: rotatedLife, Grace: c.grace}
		killed := startProcess(t, "sqlite", one, "wiki", server.Transport(c.hook))
		r := &rotation{
			T: t, server: server, tokens: make(map[int64]string), now: time.Now, sleep: time.Sleep, tolerance: 200 * time.Millisecond,
			what: fmt.Sprintf("seed %d, %v", seed, c),
		}
		r.begin(killed, c)
		before := logSize(one)
		c.kill = func() {
			size := logSize(one)
			if c.point == duringLease {
				size = before + int64(c.cut*float64(size-before))
			}
			if err := copyStore(one, two, size); err != nil {
				r.fail("copy the store: %v", err)
			}
		}
		returned := r.crash(killed, c)
		defer func() {
			returned.Wait()
			killed.close(t)
		}()
		r.sleep(c.delay)
		next := startProcess(t, "sqlite", two, "wiki", server.Transport(nil))
		defer next.close(t)
		r.checkNext(next, c)
	})
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
}
