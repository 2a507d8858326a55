package upstream

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/sluice-mesh/sluice/services/internal/principal"
)

const (
	// maxPeople is the maximum number of people with sessions at one server.
	maxPeople = 4096
	// If a person has no session, the person's transport stays open for idlePeriod, but only maxIdlePeople such transports
	// are open at the same time. After a transport is closed, the gateway has no access token of the person in memory.
	maxIdlePeople = 64
	idlePeriod    = 30 * time.Second
	// maxPersonSessions is the maximum number of sessions of one person with one server.
	maxPersonSessions = 256
	// listChangedPause is the minimum time between two reports of changes to the tool list in the sessions of one person.
	// After each report, the gateway lists the tools for all callers, so one person must not cause many reports.
	listChangedPause = time.Minute
)

// These errors are wrapped in [ErrNeverSent].
var (
	errManyPeople   = fmt.Errorf("%d people have sessions with the server, which is the maximum", maxPeople)
	errManySessions = fmt.Errorf("the person has %d sessions with the server, which is the maximum", maxPersonSessions)
	errNoPerson     = errors.New("the request is made on behalf of no known person")
)

// eachPerson is a transport to a server at which each person uses a separate account. Each person has a separate
// transport, which knows only the person's account. This transport is closed when the person has had no session for
// some time. A session belongs to the person in the request that opens the session. Therefore a session, an HTTP
// connection or an access token is never used for two people. An eachPerson is safe for concurrent use.
type eachPerson struct {
	Transport // uses the account for listing tools

	// changed signals changes to the tool list that the server reports in the sessions of any account.
	changed ListChanged
	connect func(person principal.Key) (Transport, error)
	// all is done when the transport is closed. running counts its goroutines.
	all     context.Context //nolint:containedctx // the context of the transport
	stop    context.CancelFunc
	running sync.WaitGroup

	mu     sync.Mutex
	closed bool
	people map[principal.Key]*personTransport
}

type personTransport struct {
	Transport

	person principal.Key
	// stop ends the goroutine that forwards the signals of the transport.
	stop context.CancelFunc
	// idle closes the transport after idlePeriod. It is nil if there has always been a session.
	idle *time.Timer
	// sessions is the number of sessions that are open or are being opened. idleSince is the time at which this number
	// last became zero.
	sessions  int
	idleSince time.Time
}

// EachPerson returns a transport to a server at which each person uses a separate account. connect returns a transport
// that uses the account of the given person. discovery is the transport with which the gateway itself lists the
// server's tools. It uses an account that belongs to no person.
func EachPerson(discovery Transport, connect func(person principal.Key) (Transport, error)) Transport {
	e := &eachPerson{Transport: discovery, connect: connect, people: make(map[principal.Key]*personTransport)}
	e.all, e.stop = context.WithCancel(context.Background())
	e.running.Go(func() { e.forward(e.all, discovery, 0) })
	return e
}

// ToolsChanged implements Transport.
func (e *eachPerson) ToolsChanged() <-chan struct{} { return e.changed.ToolsChanged() }

// forward passes on the signals of a transport that the server's tool list has changed, until ctx is done. It waits for
// the given pause after each signal.
func (e *eachPerson) forward(ctx context.Context, from Transport, pause time.Duration) {
	for {
		select {
		case <-from.ToolsChanged():
			e.changed.Notify()
		case <-ctx.Done():
			return
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
	}
}

// Open implements Transport.
func (e *eachPerson) Open(ctx context.Context, key principal.Key, hello Request) (Conn, Answer, error) {
	if key.Subject == principal.Catalogue {
		return e.Transport.Open(ctx, key, hello)
	}
	if hello.Person == (principal.Key{}) {
		return nil, Answer{}, fmt.Errorf("%w: %w", ErrNeverSent, &CauseError{
			Text:   "the server is called with the account of a person, but this caller may use no person's account: its owner has to create its token with `sluice token create NAME --use-my-connections`, or its token in the configuration or its issuer needs an `owner`",
			SignIn: true, Lasts: true, Err: errNoPerson,
		})
	}
	own, err := e.begin(hello.Person)
	if err != nil {
		return nil, Answer{}, fmt.Errorf("%w: %w", ErrNeverSent, err)
	}
	conn, answer, err := own.Open(ctx, key, hello)
	if err != nil {
		e.end(own)
		return nil, answer, err
	}
	return &personConn{Conn: conn, ended: sync.OnceFunc(func() { e.end(own) })}, answer, nil
}

// begin returns the transport of a person and counts one session. The caller must call end when the session has ended.
func (e *eachPerson) begin(person principal.Key) (*personTransport, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil, ErrShutdown
	}
	own := e.people[person]
	switch {
	case own != nil && own.sessions >= maxPersonSessions:
		return nil, &CauseError{Text: errManySessions.Error() + ": end some of them, or wait until they are idle", OfPerson: true, Err: errManySessions}
	case own == nil && len(e.people) >= maxPeople+maxIdlePeople:
		return nil, &CauseError{Text: errManyPeople.Error() + ": try again later", Err: errManyPeople}
	case own == nil:
		made, err := e.connect(person)
		if err != nil {
			return nil, err
		}
		own = &personTransport{Transport: made, person: person}
		var alive context.Context
		alive, own.stop = context.WithCancel(e.all)
		e.running.Go(func() { e.forward(alive, made, listChangedPause) })
		e.people[person] = own
	}
	if own.idle != nil {
		own.idle.Stop()
	}
	own.sessions++
	return own, nil
}

// end records that a session has ended. If more than maxIdlePeople people have no session, it closes the transport that
// has been idle for the longest time.
func (e *eachPerson) end(own *personTransport) {
	if unused := e.release(own); unused != nil {
		unused.close()
	}
}

// release subtracts one from the number of a person's sessions. It returns a transport to close, or nil.
func (e *eachPerson) release(own *personTransport) *personTransport {
	e.mu.Lock()
	defer e.mu.Unlock()
	if own.sessions--; own.sessions > 0 || e.closed {
		return nil
	}
	own.idleSince = time.Now()
	own.idle = time.AfterFunc(idlePeriod, func() { e.closeIdle(own) })
	idle, oldest := 0, own
	for _, one := range e.people {
		if one.sessions > 0 {
			continue
		}
		if idle++; one.idleSince.Before(oldest.idleSince) {
			oldest = one
		}
	}
	if idle <= maxIdlePeople {
		return nil
	}
	delete(e.people, oldest.person)
	return oldest
}

// closeIdle closes the transport of a person who has had no session for idlePeriod.
func (e *eachPerson) closeIdle(own *personTransport) {
	e.mu.Lock()
	isIdle := !e.closed && e.people[own.person] == own && own.sessions == 0 && time.Since(own.idleSince) >= idlePeriod
	if isIdle {
		delete(e.people, own.person)
	}
	e.mu.Unlock()
	if isIdle {
		own.close()
	}
}

// close closes a transport without sessions.
func (t *personTransport) close() {
	t.stop()
	if t.idle != nil {
		t.idle.Stop()
	}
	_ = t.Close() // it has no session, so nothing can be lost
}

// Close implements Transport.
func (e *eachPerson) Close() error {
	e.mu.Lock()
	e.closed = true
	people := e.people
	e.people = nil
	e.mu.Unlock()
	e.stop()
	errs := []error{e.Transport.Close()}
	for _, one := range people {
		if one.idle != nil {
			one.idle.Stop()
		}
		errs = append(errs, one.Close())
	}
	e.running.Wait()
	return errors.Join(errs...)
}

type personConn struct {
	Conn

	ended func()
}

// Close implements Conn.
func (c *personConn) Close(ctx context.Context) error {
	defer c.ended()
	return c.Conn.Close(ctx)
}
