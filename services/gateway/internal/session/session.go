// Package session keeps the gateway's sessions with clients, and the state that replaces them in the protocol
// revision without sessions. A session id is a handle, not a credential: a session is found only together with its
// principal, and another principal's session is answered like one that does not exist.
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
	// ErrTooMany means that the principal, a principal in its chain, or the person for whom it works has as many
	// sessions as it may have, and none can be closed: each has a request in flight or is being opened. A wrapped
	// [*quota.FullError] says which of them.
	ErrTooMany = errors.New("too many sessions are at work")
)

// maxStreams is how many concurrent streams a session may have in 2026-07-28.
const maxStreams = 64

// closeTimeout limits how long a server may take to end a session.
const closeTimeout = 5 * time.Second

// Config sets how long sessions live and how many there may be.
type Config struct {
	// Idle is how long a session lives without a request; positive.
	Idle time.Duration
	// MaxPerPrincipal is how many sessions one principal and the agents made by it may have; at least 1. All
	// principals of one person together may have four times as many.
	MaxPerPrincipal int
	// Ended is called for each session that has ended. It is required and must return at once.
	Ended func(*Session)
}

// Key identifies the owner of a session, and its server.
type Key struct {
	principal.Key

	// Server is the configured name of the server; empty for an aggregate session.
	Server string
}

// Session is an open session. Its exported fields do not change.
type Session struct {
	// ID is the handle that the client has; in the revision without sessions no client has it. It must not appear in
	// records and logs.
	ID string
	// Digest identifies the session in records: 16 hexadecimal digits.
	Digest string
	// Key is its owner and server.
	Key Key
	// Accounts are those of the caller that opened the session; it counts against them. Add sets a zero value to the
	// principal of Key alone. They must not be changed.
	Accounts principal.Accounts
	// Agent is the agent that opened the session.
	Agent string
	// Version is the negotiated protocol revision.
	Version string
	// Client is what the client declares.
	Client Client
	// Upstream is the session with the server. An aggregate session has Members instead, the sessions with several
	// servers. Hub is the aggregate session of a member session, which ends with it; nil otherwise.
	Upstream *upstream.Session
	Members  *Members
	Hub      *Session
	// Opened is when the session was opened.
	Opened time.Time
	// Definitions are the digests of the tools that it has listed.
	Definitions Definitions
	// Looked is when the server's complete list was last read to find a tool, in nanoseconds of Unix time; 0 for
	// never.
	Looked atomic.Int64
	// Waits reports whether the session has listed a tool whose every call needs an approval.
	Waits atomic.Bool
	// Asked are the requests to its client that wait for an answer.
	Asked Asked
	// Calls are its calls in flight.
	Calls Calls
	// Cursors are the cursors of lists that its client received, and Events are the ids of events on its stream.
	Cursors, Events Handed
	// Answers are the streams of its answers.
	Answers Answers
	// Ready reports whether the server was notified that the session is in use, or will be.
	Ready atomic.Bool

	// The following fields are guarded by Store.mu.
	lastUsed time.Time
	inFlight int
	isOpen   bool
	learned  int                  // how many definitions it remembers
	places   []place              // in the lists of its accounts; empty for a closed session and for a member session
	streams  map[*stream]struct{} // streams on which its client listens
}

// stream is a stream on which a client listens.
type stream struct{ end context.CancelFunc }

// Client is what a client declares about itself. It is not verified.
type Client struct {
	// Name and Version may be empty.
	Name, Version string
	// Elicits reports whether the client can ask its user with a form.
	Elicits bool
	// Offer is the capabilities that the server received, for the requests that it may send.
	Offer question.Offer
}

// State is a session with the state that may be shown.
type State struct {
	*Session
	// LastUsed is when the session was last used.
	LastUsed time.Time
	// InFlight is how many requests are in flight.
	InFlight int
}

// account identifies a list of sessions: those of a principal with the agents made by it, or of a person.
type account struct {
	principal.Key

	person bool
}

// owned are the sessions of one account.
type owned struct {
	// byUse contains its open sessions, the last used first.
	byUse list.List
	// learned is how many definitions the sessions remember, and most is the limit.
	learned, most int
}

// place is the position of a session in the list of one of its accounts.
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
	// open counts open sessions; an aggregate session with its members counts as one. moving counts sessions that are
	// being opened, and closed sessions that their servers have not ended yet.
	open, moving *quota.Tally
	closed       bool
	// quiet reports that HangUp was called.
	quiet bool

	closing sync.WaitGroup
}

// NewStore returns an empty store, or an error if cfg is invalid or log is nil.
func NewStore(cfg Config, log *slog.Logger) (*Store, error) {
	if cfg.Idle <= 0 || cfg.MaxPerPrincipal < 1 || cfg.Ended == nil {
		return nil, errors.New("session: idle and max_per_principal must be positive, and ended must be set")
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

// NewID returns a random session id and its digest.
func NewID() (id, digest string) {
	id = rand.Text()
	return id, DigestOf(id)
}

// DigestOf returns the digest of a session id.
func DigestOf(id string) string {
	sum := sha256.Sum256([]byte(id))
	return hex.EncodeToString(sum[:8])
}

// Opening counts a session that a caller with these accounts is opening, until done is called. None of the accounts
// may have more sessions being opened and closed than it may have open. It returns [ErrTooMany] otherwise.
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

// Add opens a session. If one of its accounts is full, Add closes the session of that account that was unused longest
// and has no request in flight. A member session counts with its aggregate session, which must be open. Add returns
// [ErrTooMany] or [ErrUnknown].
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

// Use returns a session and holds it until done is called. It returns [ErrUnknown] if there is none.
func (s *Store) Use(id string, key Key) (sess *Session, done func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sess, ok := s.byID[id]
	if !ok || sess.Key != key {
		return nil, nil, ErrUnknown
	}
	if sess.Hub != nil && !sess.Hub.isOpen || sess.lost() { // the aggregate session was closed while this one was made
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

// Listen returns a session for its client's stream. The returned context derives from ctx, and is cancelled when the
// session ends or another stream replaces this one; with beside set, streams do not replace one another. The session
// is held until done is called: while its client listens it is not idle, but it may be closed if an account is full.
// Listen returns [ErrUnknown], or [ErrTooMany] if the session has 64 streams.
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

// HangUp cancels the streams of all clients. Later ones are cancelled at once.
func (s *Store) HangUp() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.quiet = true
	for _, sess := range s.byID {
		sess.hangUp()
	}
}

// hangUp cancels the client's streams.
func (sess *Session) hangUp() {
	for open := range sess.streams {
		open.end()
	}
}

func (s *Store) touch(sess *Session) {
	if sess.lastUsed = time.Now(); sess.Hub != nil {
		return // using a member session uses its aggregate session
	}
	for _, p := range sess.places {
		p.own.byUse.MoveToFront(p.at)
	}
}

// lost reports whether the session's server no longer knows it. Then the session has ended, and the client must open
// another.
func (sess *Session) lost() bool { return sess.Upstream != nil && sess.Upstream.Lost() }

// End ends a session for its client. It returns [ErrUnknown] if there is none.
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

// remove closes a session and its members, and ends them at their servers in the background.
func (s *Store) remove(sess *Session) {
	delete(s.byID, sess.ID)
	sess.isOpen = false
	s.count(sess, -sess.learned)
	for member := range s.membersOf(sess) { // members count in the lists of their aggregate session
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

// membersOf returns the open members of an aggregate session. The caller holds the lock.
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

// ended notes that the server has ended a closed session, or had the time to.
func (s *Store) ended(sess *Session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.moving.Give(&sess.Accounts, 1)
}

// List returns a tenant's sessions, the last used first; sessions used at the same time are ordered by their digests.
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

// Len returns how many sessions are open. An aggregate session with its members counts as one.
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

// Run closes idle sessions until ctx is cancelled. Then it closes all sessions and waits for their servers.
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
