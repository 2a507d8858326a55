// Package session stores the gateway's sessions with clients. For clients of revision 2026-07-28, which has no
// sessions, it stores the state that would otherwise belong to a session. A session id is not a credential, because the
// gateway finds a session only by its id together with its principal. If a request contains the id of another
// principal's session, the gateway behaves as if that session did not exist.
package session

import (
	"container/list"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/question"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/principal"
	"github.com/sluice-mesh/sluice/services/internal/quota"
)

// The methods of [Store] return these errors. Compare them with errors.Is.
var (
	// ErrUnknown means that the principal has no session with this id on the server.
	ErrUnknown = errors.New("no such session")
	// ErrTooMany means that a session quota is full. This can be a quota of the principal, of a principal in its
	// delegation chain, or of a person for whom they work. No session can be closed to make room, because each session has
	// requests in flight, is being opened, or belongs to a creator of the caller. A wrapped [*quota.FullError] states
	// which quota is full.
	ErrTooMany = errors.New("too many sessions are active")
)

// maxStreams limits how many parallel streams one session can have. [Store.Listen] enforces the limit.
const maxStreams = 64

// closeTimeout is the timeout for closing a session at its server.
const closeTimeout = 5 * time.Second

// Config configures a [Store].
type Config struct {
	// Idle is how long a session may be without a request before it is closed. It must be positive.
	Idle time.Duration
	// MaxPerPrincipal limits how many sessions a principal and the agents that it has created may have together. It
	// must be at least 1. All principals of one person together may have four times as many.
	MaxPerPrincipal int
	// Ended is called for each session that has ended. It is required and must not block.
	Ended func(*Session)
}

// Key identifies the owner and the server of a session.
type Key struct {
	principal.Key

	// Person is the person for whom the owner works, or the zero key if no person is known. A session can use this
	// person's account at the server. Therefore, tokens with the same subject but different persons have different
	// sessions.
	Person principal.Key
	// Server is the configured name of the server. It is empty for an aggregate session.
	Server string
}

// Session is an open session. Callers must not assign to the exported fields, but can call methods that change the
// contents of a field. An aggregate session gives a client access to all servers at one URL. It has a member session
// for each server that the client has used.
type Session struct {
	// ID is the handle of the session. It must not appear in records or logs. Clients of revision 2026-07-28, which has
	// no sessions, never receive it.
	ID string
	// Digest identifies the session in records. It has 16 hexadecimal digits.
	Digest string
	// Key identifies the owner and the server.
	Key Key
	// Accounts are the quota accounts that are charged for the session. They belong to the caller that has opened the
	// session. If Accounts is zero, [Store.Add] sets it to the account of the principal in Key. Accounts must not be
	// modified after that.
	Accounts principal.Accounts
	// Agent is the agent that has opened the session.
	Agent string
	// Version is the negotiated protocol revision.
	Version string
	// Client describes the client. It is not verified.
	Client Client
	// Upstream is the session with the server, or nil for an aggregate session. Members contains the member sessions of an
	// aggregate session, and is nil for all other sessions. Hub is the aggregate session of a member session, and is nil
	// for all other sessions. A member session ends together with its aggregate session.
	Upstream *upstream.Session
	Members  *Members
	Hub      *Session
	// Opened is when the session was opened.
	Opened time.Time
	// Definitions contains the digests of the tool definitions that the session has listed.
	Definitions Definitions
	// LastLookup is when the gateway last read the server's complete list to find a tool, as Unix time in nanoseconds. It
	// is 0 if the gateway has never read the list.
	LastLookup atomic.Int64
	// ListsApprovalTool is true if the session has listed at least one tool that requires an approval for every call.
	ListsApprovalTool atomic.Bool
	// ClientRequests contains the requests to the client that wait for a response.
	ClientRequests ClientRequests
	// Calls contains the session's calls in flight.
	Calls Calls
	// Cursors contains the list cursors that were sent to the client. Events contains the ids of the events that were
	// sent on the session's stream.
	Cursors, Events IssuedTexts
	// Replay contains the streams of answers that the client may resume.
	Replay ReplayStreams
	// Ready is true if the server was notified, or is about to be notified, that the session is initialized.
	Ready atomic.Bool

	// Store.mu guards the fields below.
	lastUsed  time.Time
	inFlight  int
	isOpen    bool
	learned   int                  // number of digests in Definitions
	positions []listPosition       // empty for a closed session and for a member session
	streams   map[*stream]struct{} // streams that the client reads
}

type stream struct{ end context.CancelFunc }

// Client contains what a client declares about itself. The gateway does not verify these declarations.
type Client struct {
	// Name and Version are the client's name and version. They may be empty.
	Name, Version string
	// Elicits is true if the client can show a form to its user.
	Elicits bool
	// Offer contains the client's capabilities that were declared to the server. The gateway checks the server's requests
	// against these capabilities.
	Offer question.Offer
}

// account is the key of a quota for sessions. It identifies either a principal together with the agents that it has
// created, or a person.
type account struct {
	principal.Key

	person bool
}

type accountSessions struct {
	// byUse contains the account's open sessions, most recently used first.
	byUse list.List
	// learned is how many digests the account's sessions store. maxLearned limits this number.
	learned, maxLearned int
}

type listPosition struct {
	key     account
	account *accountSessions
	at      *list.Element
}

// Store contains the open sessions. It is safe for concurrent use.
type Store struct {
	cfg Config
	log *slog.Logger

	mu     sync.Mutex
	byID   map[string]*Session
	owners map[account]*accountSessions
	// open counts open sessions. An aggregate session and its member sessions count as one session. moving counts the
	// sessions that are being opened or closed. A session counts as being closed until the server has closed it.
	open, moving *quota.Tally
	closed       bool
	// hungUp is true after CloseStreams was called.
	hungUp bool

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
		byID: make(map[string]*Session), owners: make(map[account]*accountSessions),
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

// BeginOpen counts a session that a caller with the given accounts is opening, until the returned function is called.
// Sessions that are being opened or closed have quotas of the same size as open sessions, but are counted separately.
// If one of these quotas is full, BeginOpen returns [ErrTooMany].
func (s *Store) BeginOpen(by principal.Accounts) (done func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, ErrTooMany
	}
	if err := s.moving.Acquire(&by, 1); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrTooMany, err)
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.moving.Release(&by, 1)
	}, nil
}

// Add opens a session. If one of the session's accounts is full, Add first closes the session of that account that has
// been idle for the longest time. It never closes a session with a request in flight, or a session of a principal that
// has created the caller. A member session counts as part of its aggregate session, which must be open. Add returns
// [ErrTooMany] or [ErrUnknown].
func (s *Store) Add(sess *Session) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(sess.Accounts.All()) == 0 {
		sess.Accounts = principal.AccountsOfKey(sess.Key.Key)
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
		idle := s.longestIdle(account{full.Account, full.Person}, &sess.Accounts)
		if idle == nil {
			return fmt.Errorf("%w: %w", ErrTooMany, full)
		}
		s.remove(idle)
	}
	s.open.Add(&sess.Accounts, 1)
	sess.lastUsed = time.Now()
	s.addToAccounts(sess)
	s.byID[sess.ID], sess.isOpen = sess, true
	return nil
}

// Use returns a session and marks it as in use until the returned function is called. While a session is in use, it is
// not closed for being idle or to make room for another session. Use returns [ErrUnknown] if there is no such session.
func (s *Store) Use(id string, key Key) (sess *Session, done func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sess, ok := s.byID[id]
	if !ok || sess.Key != key {
		return nil, nil, ErrUnknown
	}
	// Either the aggregate session was closed while the member session was being opened, or the server has lost the
	// session.
	if sess.Hub != nil && !sess.Hub.isOpen || sess.isLost() {
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

// Listen adds a stream that the client reads, and returns the stream's session. The returned context derives from ctx
// and is cancelled when the session ends. If parallel is false, Listen cancels all earlier streams of the session.
// Until the returned function is called, the session does not count as idle, but the store may close it to make room
// for another session. Listen returns [ErrUnknown] if there is no such session, and [ErrTooMany] if parallel is true
// and the session has 64 streams.
func (s *Store) Listen(ctx context.Context, id string, key Key, parallel bool) (sess *Session, listening context.Context, done func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sess, ok := s.byID[id]
	if !ok || sess.Key != key {
		return nil, nil, nil, ErrUnknown
	}
	if sess.isLost() {
		s.remove(sess)
		return nil, nil, nil, ErrUnknown
	}
	if !parallel {
		sess.closeStreams()
	}
	if parallel && len(sess.streams) >= maxStreams {
		return nil, nil, nil, ErrTooMany
	}
	own := new(stream)
	listening, own.end = context.WithCancel(ctx)
	if sess.streams == nil {
		sess.streams = make(map[*stream]struct{})
	}
	sess.streams[own] = struct{}{}
	if s.hungUp {
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

// CloseStreams cancels the streams of all clients. It also makes Listen cancel each later stream immediately.
func (s *Store) CloseStreams() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hungUp = true
	for _, sess := range s.byID {
		sess.closeStreams()
	}
}

func (sess *Session) closeStreams() {
	for open := range sess.streams {
		open.end()
	}
}

func (s *Store) touch(sess *Session) {
	if sess.lastUsed = time.Now(); sess.Hub != nil {
		return // each request in a member session also uses the aggregate session
	}
	for _, p := range sess.positions {
		p.account.byUse.MoveToFront(p.at)
	}
}

// isLost reports whether the server no longer knows the session. Such a session has ended, and the client must open
// another one.
func (sess *Session) isLost() bool { return sess.Upstream != nil && sess.Upstream.IsLost() }

// End closes a session at the request of its client. It returns [ErrUnknown] if there is no such session.
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

// remove closes a session and its member sessions. It closes them at their servers in the background. The caller must
// hold the lock.
func (s *Store) remove(sess *Session) {
	delete(s.byID, sess.ID)
	sess.isOpen = false
	s.count(sess, -sess.learned)
	for member := range s.membersOf(sess) { // members count as part of their aggregate session
		s.count(member, -member.learned)
	}
	if sess.Hub == nil {
		s.open.Release(&sess.Accounts, 1)
	}
	s.removeFromAccounts(sess)
	s.moving.Add(&sess.Accounts, 1)
	sess.closeStreams()
	sess.ClientRequests.Close()
	sess.Replay.Close()
	s.cfg.Ended(sess)
	for member := range s.membersOf(sess) {
		s.remove(member)
	}
	s.closing.Go(func() {
		defer s.noteClosed(sess)
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

// membersOf returns the open member sessions of an aggregate session. The caller must hold the lock.
func (s *Store) membersOf(sess *Session) iter.Seq[*Session] {
	return func(yield func(*Session) bool) {
		if sess.Members == nil {
			return
		}
		for _, id := range sess.Members.IDs() {
			if member := s.byID[id]; member != nil && !yield(member) {
				return
			}
		}
	}
}

// noteClosed records that a session is no longer being closed. Either the server has closed it, or the timeout has
// expired.
func (s *Store) noteClosed(sess *Session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.moving.Release(&sess.Accounts, 1)
}

// Run closes idle sessions until ctx is cancelled. It then closes all sessions and waits until their servers have
// closed them.
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
