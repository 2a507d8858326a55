// Package session keeps the gateway's own sessions, and what stands for them in the revision that
// has none. A session's identifier is a handle, not a credential: it is looked
// up together with the principal, and another principal's is as unknown as one
// that never was.
package session

import (
	"cmp"
	"container/list"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/question"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/principal"
	"github.com/sluice-mesh/sluice/services/internal/quota"
)

// Errors of a [Store]. Compare with errors.Is.
var (
	// ErrUnknown means that the principal has no such session on that server.
	ErrUnknown = errors.New("no such session")
	// ErrTooMany means that the principal, one that stands behind it, or the person whom it works for has as
	// many sessions as it may have, each with a request in flight or about to be opened. A [*quota.FullError] says
	// which of them.
	ErrTooMany = errors.New("too many sessions are at work")
)

// maxStreams is how many streams a session may have that are beside one another.
const maxStreams = 64

// closeTimeout bounds how long a server is given to end a session.
const closeTimeout = 5 * time.Second

// Config says how long sessions live, how many there may be, and who hears of their ends.
type Config struct {
	// Idle is how long a session lives without a request. Positive.
	Idle time.Duration
	// MaxPerPrincipal is how many one principal and the agents made by it may have. At least 1. All principals
	// of one person may have four times as many.
	MaxPerPrincipal int
	// Ended is told of each that has ended. Required. It is to return at once.
	Ended func(*Session)
}

// Key is whose session it is, and on which server.
type Key struct {
	principal.Key

	// Server is the upstream's configured name; empty for a session with many.
	Server string
}

// Session is one open session. Its exported fields do not change.
type Session struct {
	// ID is the handle that the client holds, or nobody where the revision has no sessions. It stays
	// out of records and logs.
	ID string
	// Digest names the session in records: 16 hexadecimal digits.
	Digest string
	// Key is whose it is.
	Key Key
	// Accounts are those of the caller that opened it, against which it counts. The zero value stands for a
	// principal of which nothing but its key is known. They are not to be changed.
	Accounts principal.Accounts
	// Agent is the agent that opened it.
	Agent string
	// Version is the protocol revision that was negotiated.
	Version string
	// Client is what the client says of itself.
	Client Client
	// Upstream is the session with the server, or Members are those with many, of which this is the
	// hub; the other is nil. Hub is the one that a member is of, with which it ends; nil elsewhere.
	Upstream *upstream.Session
	Members  *Members
	Hub      *Session
	// Opened is when it was opened.
	Opened time.Time
	// Definitions are what it has listed.
	Definitions Definitions
	// Looked is when all that the server lists was read last to find a tool, in nanoseconds
	// of the Unix time; 0 for never.
	Looked atomic.Int64
	// Waits reports whether it has listed a tool whose every call waits for people.
	Waits atomic.Bool
	// Asked are what its client was asked.
	Asked Asked
	// Calls are those on their way.
	Calls Calls
	// Cursors are those of lists that its client was given, and Events the ids of events on
	// its stream.
	Cursors, Events Handed
	// Answers are the streams of its answers.
	Answers Answers
	// Ready reports whether the server knows that the session is in use, or will be told.
	Ready atomic.Bool

	// guarded by Store.mu
	lastUsed time.Time
	inFlight int
	isOpen   bool
	learned  int                  // how many definitions it remembers
	places   []place              // in the lists of its accounts; none once it is closed, and for a member
	streams  map[*stream]struct{} // its client's
}

// stream is one on which a client listens.
type stream struct{ end context.CancelFunc }

// Client is what a client says of itself: claims.
type Client struct {
	// Name and Version may be empty.
	Name, Version string
	// Elicits reports whether it can ask whoever sits at it, by a form.
	Elicits bool
	// Offer is what its server was told that it may ask.
	Offer question.Offer
}

// State is what may be shown of a session.
type State struct {
	*Session
	// LastUsed is when it was last used.
	LastUsed time.Time
	// InFlight is how many requests are in flight.
	InFlight int
}

// account is one by which sessions are listed: a principal, with the agents made by it, or a person.
type account struct {
	principal.Key

	person bool
}

// owned is what one account has.
type owned struct {
	// byUse holds its open sessions, the last used in front.
	byUse list.List
	// learned is how many definitions they remember, and most how many they may.
	learned, most int
}

// place is a session's place in the list of one of its accounts.
type place struct {
	of  account
	own *owned
	at  *list.Element
}

// Store holds the open sessions. It is safe for concurrent use.
type Store struct {
	cfg Config
	log *slog.Logger

	mu     sync.Mutex
	byID   map[string]*Session
	owners map[account]*owned
	// open counts sessions that are open, hubs with their members as one. moving counts those that are being
	// opened, and those that were closed and that their servers have not ended yet.
	open, moving *quota.Tally
	closed       bool
	// quiet says that nobody listens any more.
	quiet bool

	closing sync.WaitGroup
}

// NewStore returns an empty store.
func NewStore(cfg Config, log *slog.Logger) (*Store, error) {
	if cfg.Idle <= 0 || cfg.MaxPerPrincipal < 1 || cfg.Ended == nil {
		return nil, errors.New("session: idle and max_per_principal must be positive, and somebody told of ends")
	}
	if log == nil {
		return nil, errors.New("session: a log is required")
	}
	return &Store{
		cfg: cfg, log: log,
		byID: make(map[string]*Session), owners: make(map[account]*owned),
		open:   quota.NewTally("sessions", quota.For(cfg.MaxPerPrincipal)),
		moving: quota.NewTally("sessions that are being opened or closed", quota.For(cfg.MaxPerPrincipal)),
	}, nil
}

// NewID returns a random handle and its digest.
func NewID() (id, digest string) {
	id = rand.Text()
	return id, DigestOf(id)
}

// DigestOf is the digest of a handle.
func DigestOf(id string) string {
	sum := sha256.Sum256([]byte(id))
	return hex.EncodeToString(sum[:8])
}

// Opening notes that a session is about to be opened by a caller with these accounts, until done is called:
// none of them has more on their way, in and out, than it may have open. Errors: [ErrTooMany].
func (s *Store) Opening(by principal.Accounts) (done func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, ErrTooMany
	}
	if err := s.moving.Take(&by, 1); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrTooMany, err)
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.moving.Give(&by, 1)
	}, nil
}

// Add opens a session. Where one of its accounts has as many as it may have, the one of that account's
// that was longest unused, without a request in flight, is closed. A member counts as its hub does, which
// has to be open. Errors: [ErrTooMany], [ErrUnknown].
func (s *Store) Add(sess *Session) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(sess.Accounts.All()) == 0 {
		sess.Accounts = principal.Alone(sess.Key.Key)
	}
	if sess.Hub != nil {
		if !sess.Hub.isOpen {
			return ErrUnknown
		}
		s.byID[sess.ID], sess.isOpen = sess, true
		return nil
	}
	if s.closed {
		return ErrTooMany
	}
	for full := s.open.Full(&sess.Accounts, 1); full != nil; full = s.open.Full(&sess.Accounts, 1) {
		idle := s.idlest(account{full.Account, full.Person}, &sess.Accounts)
		if idle == nil {
			return fmt.Errorf("%w: %w", ErrTooMany, full)
		}
		s.remove(idle)
	}
	s.open.Count(&sess.Accounts, 1)
	sess.lastUsed = time.Now()
	s.list(sess)
	s.byID[sess.ID], sess.isOpen = sess, true
	return nil
}

// Use returns a session and holds it until done is called. Errors: [ErrUnknown].
func (s *Store) Use(id string, key Key) (sess *Session, done func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sess, ok := s.byID[id]
	if !ok || sess.Key != key {
		return nil, nil, ErrUnknown
	}
	if sess.Hub != nil && !sess.Hub.isOpen || sess.lost() { // the hub was closed while this one was made
		s.remove(sess)
		return nil, nil, ErrUnknown
	}
	sess.inFlight++
	s.touch(sess)
	return sess, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		sess.inFlight--
		if sess.isOpen {
			s.touch(sess)
		}
	}, nil
}

// Listen returns a session for its client's stream, and a context in ctx that ends with the
// session too, or once another stream takes the place of this one, which one that may be beside
// others does not. It is held until done is called: a session whose client listens is not idle,
// but may be closed to make room. Errors: [ErrUnknown], or [ErrTooMany] beside 64 others.
func (s *Store) Listen(ctx context.Context, id string, key Key, beside bool) (sess *Session, listening context.Context, done func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sess, ok := s.byID[id]
	if !ok || sess.Key != key {
		return nil, nil, nil, ErrUnknown
	}
	if sess.lost() {
		s.remove(sess)
		return nil, nil, nil, ErrUnknown
	}
	if !beside {
		sess.hangUp()
	}
	if beside && len(sess.streams) >= maxStreams {
		return nil, nil, nil, ErrTooMany
	}
	own := new(stream)
	listening, own.end = context.WithCancel(ctx)
	if sess.streams == nil {
		sess.streams = make(map[*stream]struct{})
	}
	sess.streams[own] = struct{}{}
	if s.quiet {
		own.end()
	}
	s.touch(sess)
	return sess, listening, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		own.end()
		delete(sess.streams, own)
		if sess.isOpen {
			s.touch(sess)
		}
	}, nil
}

// HangUp ends the streams of all clients, now and from now on, so that nobody waits for them.
func (s *Store) HangUp() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.quiet = true
	for _, sess := range s.byID {
		sess.hangUp()
	}
}

// hangUp ends its client's streams.
func (sess *Session) hangUp() {
	for open := range sess.streams {
		open.end()
	}
}

func (s *Store) touch(sess *Session) {
	if sess.lastUsed = time.Now(); sess.Hub != nil {
		return // who uses it uses its hub
	}
	for _, p := range sess.places {
		p.own.byUse.MoveToFront(p.at)
	}
}

// lost reports whether the session's server no longer knows it: it has ended then, and its client opens another.
func (sess *Session) lost() bool { return sess.Upstream != nil && sess.Upstream.Lost() }

// End ends a session at its client's wish. Errors: [ErrUnknown].
func (s *Store) End(id string, key Key) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	sess, ok := s.byID[id]
	if !ok || sess.Key != key {
		return ErrUnknown
	}
	s.remove(sess)
	return nil
}

// remove takes a session out and tells its server, without waiting; where it has many, all of them.
func (s *Store) remove(sess *Session) {
	delete(s.byID, sess.ID)
	sess.isOpen = false
	s.count(sess, -sess.learned)
	for member := range s.membersOf(sess) { // which is counted where its hub is listed
		s.count(member, -member.learned)
	}
	if sess.Hub == nil {
		s.open.Give(&sess.Accounts, 1)
	}
	s.unlist(sess)
	s.moving.Count(&sess.Accounts, 1)
	sess.hangUp()
	sess.Asked.Close()
	sess.Answers.Close()
	s.cfg.Ended(sess)
	for member := range s.membersOf(sess) {
		s.remove(member)
	}
	s.closing.Go(func() {
		defer s.ended(sess)
		if sess.Upstream == nil {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
		defer cancel()
		if err := sess.Upstream.Close(ctx); err != nil {
			s.log.DebugContext(ctx, "server did not end the session", "server", sess.Key.Server, "error", upstream.ForLog(err))
		}
	})
}

// membersOf are the open members of a hub. It needs the lock.
func (s *Store) membersOf(sess *Session) iter.Seq[*Session] {
	return func(yield func(*Session) bool) {
		if sess.Members == nil {
			return
		}
		for _, id := range sess.Members.All() {
			if member := s.byID[id]; member != nil && !yield(member) {
				return
			}
		}
	}
}

// ended notes that a closed session's server has ended it, or was given the time.
func (s *Store) ended(sess *Session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.moving.Give(&sess.Accounts, 1)
}

// List returns a tenant's sessions, the last used first; of those used at the
// same time the one with the lower digest.
func (s *Store) List(tenant string) []State {
	states := s.snapshot(tenant)
	slices.SortFunc(states, func(a, b State) int {
		return cmp.Or(b.LastUsed.Compare(a.LastUsed), cmp.Compare(a.Digest, b.Digest))
	})
	return states
}

func (s *Store) snapshot(tenant string) []State {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []State
	for _, sess := range s.byID {
		if sess.Key.Tenant == tenant {
			out = append(out, State{Session: sess, LastUsed: sess.lastUsed, InFlight: sess.inFlight})
		}
	}
	return out
}

// Len returns how many sessions are open, a hub with its members as one.
func (s *Store) Len() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sess := range s.byID {
		if sess.Hub == nil {
			n++
		}
	}
	return n
}

// Run closes sessions that are idle for too long, until ctx ends; then it closes
// all of them and waits for their servers.
func (s *Store) Run(ctx context.Context) error {
	tick := time.NewTicker(max(s.cfg.Idle/10, 10*time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			s.closeAll()
			return nil
		case now := <-tick.C:
			s.sweep(now)
		}
	}
}

func (s *Store) sweep(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sess := range s.byID {
		if sess.Hub == nil && sess.inFlight == 0 && len(sess.streams) == 0 && now.Sub(sess.lastUsed) >= s.cfg.Idle {
			s.remove(sess)
		}
	}
}

func (s *Store) closeAll() {
	s.mu.Lock()
	s.closed = true
	for _, sess := range s.byID {
		s.remove(sess)
	}
	s.mu.Unlock()
	s.closing.Wait()
}
