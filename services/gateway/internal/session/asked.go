package session

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/gate"
)

const (
	// maxAsked is how many requests of its server may wait for a session's client at a time,
	// and maxAskedMinute how many there may be in a minute, those that are refused among them.
	maxAsked       = 16
	maxAskedMinute = 600
)

// Errors of [Asked.Ask]. Compare with errors.Is.
var (
	// ErrAskedID means that an id is neither a string nor an integer.
	ErrAskedID = errors.New("its id is neither a string nor an integer")
	// ErrAskedTwice means that a request with the same id waits.
	ErrAskedTwice = errors.New("another with this id waits")
	// ErrAskedTooMuch means that too many wait.
	ErrAskedTooMuch = errors.New("too many wait for this client")
	// ErrAskedFlood means that too many came in this minute. Nobody is to answer them.
	ErrAskedFlood = errors.New("too many came in this minute")
	// ErrAskedClosed means that the session is closed.
	ErrAskedClosed = errors.New("the session is closed")
)

// Asked are the requests that were sent to a session's client and wait for an answer: the
// gateway's own, and its server's. The zero value is that of a session that was asked
// nothing. It is safe for concurrent use.
type Asked struct {
	mu   sync.Mutex
	byID map[string]*Question
	// waiting is how many of them are the server's, and made how many of those there were since.
	waiting, made int
	since         time.Time
	closed        bool
}

// Question is one of them. Whoever asks closes it.
type Question struct {
	of         *Asked
	own        bool // the gateway's
	key, token string
	answer     chan *gate.Message
	void       chan struct{}
	closed     chan struct{}
}

// Ask notes a request of the server's with this raw id. Errors: [ErrAskedID], [ErrAskedTwice],
// [ErrAskedTooMuch], [ErrAskedFlood], [ErrAskedClosed].
func (a *Asked) Ask(id []byte) (*Question, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if now := time.Now(); now.Sub(a.since) >= time.Minute {
		a.since, a.made = now, 0
	}
	if a.made++; a.made > maxAskedMinute {
		return nil, ErrAskedFlood
	}
	if a.waiting >= maxAsked {
		return nil, ErrAskedTooMuch
	}
	return a.add(&Question{key: gate.IDKey(id)})
}

// AskOwn notes a request of the gateway's own, which no server can keep it from. Errors:
// [ErrAskedID], [ErrAskedTwice], [ErrAskedClosed].
func (a *Asked) AskOwn(id []byte) (*Question, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.add(&Question{key: gate.IDKey(id), own: true})
}

// add needs the lock.
func (a *Asked) add(q *Question) (*Question, error) {
	switch {
	case a.closed:
		return nil, ErrAskedClosed
	case q.key == "":
		return nil, ErrAskedID
	case a.byID[q.key] != nil:
		return nil, ErrAskedTwice
	}
	if a.byID == nil {
		a.byID = make(map[string]*Question)
	}
	q.of, q.answer, q.void, q.closed = a, make(chan *gate.Message, 1), make(chan struct{}), make(chan struct{})
	a.byID[q.key] = q
	if !q.own {
		a.waiting++
	}
	return q, nil
}

// Reports says that progress is told with this raw token; nil for none.
func (q *Question) Reports(token []byte) {
	q.of.mu.Lock()
	defer q.of.mu.Unlock()
	q.token = gate.IDKey(token)
}

// Answer has the answer once it came. It may be looked at until the question is closed.
func (q *Question) Answer() <-chan *gate.Message { return q.answer }

// Void ends when whoever the request is of has taken it back, or the session is closed.
func (q *Question) Void() <-chan struct{} { return q.void }

// Close says that nobody waits for the answer, or looks at it, any more.
func (q *Question) Close() {
	q.of.mu.Lock()
	defer q.of.mu.Unlock()
	delete(q.of.byID, q.key)
	if !q.own {
		q.of.waiting--
	}
	close(q.closed)
}

// Answer passes a client's answer on to who asked, and returns when that is done with it, or
// ctx ends. One that nobody waits for, or a second one, is dropped.
func (a *Asked) Answer(ctx context.Context, m *gate.Message) {
	a.mu.Lock()
	q := a.byID[gate.IDKey(m.ID.Of(m.Raw))]
	a.mu.Unlock()
	if q == nil {
		return
	}
	select {
	case q.answer <- m:
	default:
		return
	}
	select {
	case <-q.closed:
	case <-ctx.Done():
	}
}

// Waits reports whether a request with this raw id waits for an answer.
func (a *Asked) Waits(id []byte) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.byID[gate.IDKey(id)] != nil
}

// TakeBack says that the server's request with this raw id is void.
func (a *Asked) TakeBack(id []byte) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if q := a.byID[gate.IDKey(id)]; q != nil && !q.own {
		q.end()
	}
}

// Close makes every request void, now and from now on.
func (a *Asked) Close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	for _, q := range a.byID {
		q.end()
	}
}

// end needs the lock.
func (q *Question) end() {
	select {
	case <-q.void:
	default:
		close(q.void)
	}
}

// Wants reports whether a request that waits has this raw token for its progress.
func (a *Asked) Wants(token []byte) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	key := gate.IDKey(token)
	for _, q := range a.byID {
		if key != "" && q.token == key {
			return true
		}
	}
	return false
}
