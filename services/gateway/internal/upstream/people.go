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
	// maxIdlePeople is the maximum number of people without a session whose transports stay open.
	maxIdlePeople = 64
	// maxPersonSessions is the maximum number of sessions of one person with one server.
	maxPersonSessions = 256
)

// These errors are wrapped in [ErrNeverSent].
var (
	errManyPeople   = fmt.Errorf("%d people have sessions with the server, which is the maximum", maxPeople)
	errManySessions = fmt.Errorf("the person has %d sessions with the server, which is the maximum", maxPersonSessions)
	errNoPerson     = errors.New("the request is made on behalf of no known person")
)

// eachPerson is a transport to a server at which each person uses their own account. There is a separate transport for
// each person, which uses only that person's account. A session belongs to the person in the request that opens it.
// Therefore, two people never share a session, an HTTP connection or an access token. eachPerson is safe for concurrent
// use.
type eachPerson struct {
	Transport // uses the account for listing tools

	connect func(person principal.Key) (Transport, error)

	mu     sync.Mutex
	closed bool
	people map[principal.Key]*personTransport
}

type personTransport struct {
	Transport

	// sessions is the number of sessions that are open or are being opened. idleSince is the time at which the last of
	// them ended.
	sessions  int
	idleSince time.Time
}

// EachPerson returns a transport to a server at which each person uses their own account. connect returns a transport
// that uses the account of the given person. discovery is the transport with which the gateway itself lists the
// server's tools. It uses an account that belongs to no person.
func EachPerson(discovery Transport, connect func(person principal.Key) (Transport, error)) Transport {
	return &eachPerson{Transport: discovery, connect: connect, people: make(map[principal.Key]*personTransport)}
}

// Open implements Transport.
func (e *eachPerson) Open(ctx context.Context, key principal.Key, hello Request) (Conn, Answer, error) {
	if key.Subject == principal.Catalogue {
		return e.Transport.Open(ctx, key, hello)
	}
	if hello.Person == (principal.Key{}) {
		return nil, Answer{}, fmt.Errorf("%w: %w", ErrNeverSent, &CauseError{
			Text:   "the server is called with the account of the person for whom a caller works, but no person is known for this caller: its token, or its issuer, needs an `owner`",
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
		return nil, &CauseError{Text: errManySessions.Error() + ": end some of them, or wait until they are idle", Err: errManySessions}
	case own == nil && len(e.people) >= maxPeople+maxIdlePeople:
		return nil, &CauseError{Text: errManyPeople.Error() + ": try again later", Err: errManyPeople}
	case own == nil:
		made, err := e.connect(person)
		if err != nil {
			return nil, err
		}
		own = &personTransport{Transport: made}
		e.people[person] = own
	}
	own.sessions++
	return own, nil
}

// end records that a session has ended. If more than maxIdlePeople people have no session, it closes the transport that
// has been idle for the longest time.
func (e *eachPerson) end(own *personTransport) {
	if unused := e.release(own); unused != nil {
		_ = unused.Close() // the transport has no session, so nothing is lost
	}
}

func (e *eachPerson) release(own *personTransport) Transport {
	e.mu.Lock()
	defer e.mu.Unlock()
	if own.sessions--; own.sessions > 0 || e.closed {
		return nil
	}
	own.idleSince = time.Now()
	idle, oldest := 0, principal.Key{}
	for person, one := range e.people {
		if one.sessions > 0 {
			continue
		}
		if idle++; idle == 1 || one.idleSince.Before(e.people[oldest].idleSince) {
			oldest = person
		}
	}
	if idle <= maxIdlePeople {
		return nil
	}
	unused := e.people[oldest]
	delete(e.people, oldest)
	return unused.Transport
}

// Close implements Transport.
func (e *eachPerson) Close() error {
	e.mu.Lock()
	e.closed = true
	people := e.people
	e.people = nil
	e.mu.Unlock()
	errs := []error{e.Transport.Close()}
	for _, one := range people {
		errs = append(errs, one.Close())
	}
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
