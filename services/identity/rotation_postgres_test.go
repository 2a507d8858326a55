package identity_test

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"net"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/internal/oauthtest"
	"github.com/sluice-mesh/sluice/services/internal/sqlstore/sqlstoretest"
)

// The same as TestRotation_SeededCrashesOfAReplica with PostgreSQL: the killed replica loses its connections to the
// database, and the next replica uses the same database. There are fewer cases, because time is not virtual: instead of
// waiting, the test moves the times in the database into the past.
func TestRotation_CrashesOfAReplicaWithPostgres(t *testing.T) {
	t.Parallel()
	source := sqlstoretest.Postgres(t)
	importedStore(t, source)
	killed := new(sync.WaitGroup) // killed replicas that try to store their tokens
	t.Cleanup(killed.Wait)
	for name, point := range crashPoints {
		for seed := range uint64(10) {
			t.Run(fmt.Sprintf("%s %d", name, seed), func(t *testing.T) {
				t.Parallel()
				runPostgresCrash(t, source, newCrash(point, seed), fmt.Sprintf("wiki-%d-%d", point, seed), killed)
			})
		}
	}
}

// runPostgresCrash runs one crash with PostgreSQL. The connection at the given server must be used by no other test.
func runPostgresCrash(t *testing.T, source string, c *crash, name string, killed *sync.WaitGroup) {
	t.Helper()
	c.left, c.delay = 25*time.Second, c.delay/4 // a machine can be slow
	if c.rotations == 0 || c.point == afterResponse {
		c.delay += leaseTime + time.Second
	}
	clock := newMovedClock(t, source, name)
	server := &oauthtest.Server{Life: rotatedLife, Grace: c.grace, Now: clock.now}
	r := &rotation{T: t, server: server, tokens: make(map[int64]string), now: clock.now, sleep: clock.sleep, tolerance: 10 * time.Second, what: c.String()}
	proxy := startStoreProxy(t, source)
	c.kill = proxy.cut
	one := startProcess(t, proxy.source, t.TempDir(), name, server.Transport(c.hook))
	r.begin(one, c)
	if c.point == duringLease {
		proxy.beforeCommit(leaseCommit, c.end)
	}
	returned := r.crash(one, c)
	killed.Go(func() {
		returned.Wait()
		_ = one.svc.Close() // it can fail, because the store is away
	})
	r.sleep(c.delay)
	two := startProcess(t, source, t.TempDir(), name, server.Transport(nil))
	defer two.close(t)
	r.checkNext(two, c)
}

// A replica gets the response of the store so late that its lease may have ended. Meanwhile, another replica has
// refreshed the token. The first replica does not send the refresh token again, because this would end the grant.
func TestRotation_LateLeaseIsNotUsed(t *testing.T) {
	t.Parallel()
	source := sqlstoretest.Postgres(t)
	importedStore(t, source)
	clock := newMovedClock(t, source, "wiki")
	server := &oauthtest.Server{Life: rotatedLife, Now: clock.now}
	proxy := startStoreProxy(t, source)
	slow := startProcess(t, proxy.source, t.TempDir(), "wiki", server.Transport(nil))
	defer slow.close(t)
	fast := startProcess(t, source, t.TempDir(), "wiki", server.Transport(nil))
	defer fast.close(t)
	r := &rotation{T: t, server: server, tokens: make(map[int64]string), now: clock.now, sleep: clock.sleep, what: "a slow store"}
	slow.signIn(t, server)
	got, err := slow.ask(t.Context())
	r.want(got, err, 1)
	r.sleep(rotatedLife - 10*time.Second)
	committed, release := make(chan struct{}), make(chan struct{})
	proxy.beforeCommit(leaseCommit, func() {
		proxy.hold(release)
		close(committed)
	})
	var call sync.WaitGroup
	call.Go(func() {
		if got, err := slow.ask(t.Context()); err != nil || got.GetGeneration() != 2 || !server.Accepts(got.GetAccessToken()) {
			t.Errorf("the slow replica: %v, %v", got, err)
		}
	})
	<-committed
	<-time.After(11 * time.Second) // longer than the time limit of a refresh, which begins with its lease
	r.sleep(leaseTime)
	got, err = fast.ask(t.Context())
	r.want(got, err, 2)
	close(release)
	call.Wait()
	if uses := server.Uses(); len(uses) != 1 {
		t.Errorf("the refresh tokens were used: %+v", uses)
	}
}

// movedClock is a clock that can be moved forward. The times of one connection in the database are moved with it.
type movedClock struct {
	*testing.T
	db   *sql.DB
	name string

	mu    sync.Mutex
	moved time.Duration
}

// newMovedClock returns a clock that moves the times of the connection to the given server.
func newMovedClock(t *testing.T, source, name string) *movedClock {
	t.Helper()
	db, err := sql.Open("pgx", source)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return &movedClock{T: t, db: db, name: name}
}

func (c *movedClock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Now().Add(c.moved)
}

func (c *movedClock) sleep(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if d <= 0 {
		return
	}
	c.moved += d
	_, err := c.db.ExecContext(context.WithoutCancel(c.Context()), `UPDATE identity_connections SET connected = connected - $1, refreshed = refreshed - $1, expires = expires - $1,
		lease_until = CASE WHEN lease_until = 0 THEN 0 ELSE lease_until - $1 END WHERE server = $2`, d.Microseconds(), c.name)
	if err != nil {
		c.Error(err)
	}
}

// leaseCommit is the number of the commit with which a request for a token stores its lease. The first commit ends the
// transaction that reads the connection.
const leaseCommit = 2

// storeProxy forwards connections to PostgreSQL. It is safe for concurrent use.
type storeProxy struct {
	// source is the URL of the database through the proxy.
	source string
	to     string
	lis    net.Listener

	mu     sync.Mutex
	conns  []net.Conn
	isCut  bool
	before map[int]func()
	held   <-chan struct{}
}

func startStoreProxy(t *testing.T, source string) *storeProxy {
	t.Helper()
	at, err := url.Parse(source)
	if err != nil {
		t.Fatal(err)
	}
	lis, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &storeProxy{to: at.Host, lis: lis, before: make(map[int]func())}
	at.Host = lis.Addr().String()
	p.source = at.String()
	go p.serve()
	t.Cleanup(p.cut)
	return p
}

// cut closes all connections, and accepts no new ones.
func (p *storeProxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.isCut = true
	_ = p.lis.Close()
	for _, conn := range p.conns {
		_ = conn.Close()
	}
}

// beforeCommit calls f before the given number of commits from now on is forwarded.
func (p *storeProxy) beforeCommit(number int, f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.before[number] = f
}

// hold lets the responses of the database wait until the channel is closed.
func (p *storeProxy) hold(until <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held = until
}

func (p *storeProxy) serve() {
	for {
		client, err := p.lis.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", p.to)
		if err != nil {
			_ = client.Close()
			continue
		}
		p.mu.Lock()
		p.conns = append(p.conns, client, server)
		isCut := p.isCut
		p.mu.Unlock()
		if isCut {
			_, _ = client.Close(), server.Close()
			continue
		}
		go p.forward(server, client, p.commit)
		go p.forward(client, server, p.await)
	}
}

// forward copies data until one of the connections is closed. It calls f before it writes data.
func (*storeProxy) forward(to, from net.Conn, f func(data []byte)) {
	defer to.Close()
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		if n > 0 {
			f(buffer[:n])
			if _, err := to.Write(buffer[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// commit calls the function for a commit if the data contain one.
func (p *storeProxy) commit(data []byte) {
	if !bytes.Contains(data, []byte("commit\x00")) {
		return
	}
	p.mu.Lock()
	var f func()
	next := make(map[int]func())
	for number, one := range p.before {
		if number == 1 {
			f = one
		} else {
			next[number-1] = one
		}
	}
	p.before = next
	p.mu.Unlock()
	if f != nil {
		f()
	}
}

func (p *storeProxy) await([]byte) {
	p.mu.Lock()
	held := p.held
	p.mu.Unlock()
	if held != nil {
		<-held
	}
}
