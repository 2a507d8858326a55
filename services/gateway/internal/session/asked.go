package session

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/gate"
)

const (
	// maxAsked is how many requests may wait for a session's client at a time, and
	// maxAskedMinute how many there may be in a minute.
	maxAsked       = 16
	maxAskedMinute = 600
)

// Errors of [Asked.Ask]. Compare with errors.Is.
var (
	// ErrAskedTwice means that a request with the same id waits.
	ErrAskedTwice = errors.New("a request with this id waits for an answer")
	// ErrAskedTooMuch means that too many wait, or came in this minute.
	ErrAskedTooMuch = errors.New("too many requests wait for this client, or came in this minute")
)

// Asked are the requests that were sent to a session's client and wait for an answer: the
// gateway's own, and its server's. The zero value is that of a session that was asked
// nothing. It is safe for concurrent use.
type Asked struct {
	mu   sync.Mutex
	byID map[string]*Question
	// made is how many there were since then.
	made  int
	since time.Time
}

// Question is one of them. Whoever asks closes it.
type Question struct {
	of         *Asked
	key, token string
	answer     chan *gate.Message
	void       chan struct{}
	closed     chan struct{}
}

// Ask notes a request with this raw id. Errors: [ErrAskedTwice], [ErrAskedTooMuch].
func (a *Asked) Ask(id []byte) (*Question, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	q := &Question{
		of: a, key: gate.IDKey(id),
		answer: make(chan *gate.Message, 1), void: make(chan struct{}), closed: make(chan struct{}),
	}
	if now := time.Now(); now.Sub(a.since) >= time.Minute {
		a.since, a.made = now, 0
	}
	switch {
	case q.key == "" || a.byID[q.key] != nil:
		return nil, ErrAskedTwice
	case len(a.byID) >= maxAsked || a.made >= maxAskedMinute:
		return nil, ErrAskedTooMuch
	}
	if a.byID == nil {
		a.byID = make(map[string]*Question)
	}
	a.byID[q.key] = q
	a.made++
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

// Void ends when whoever the request is of has taken it back.
func (q *Question) Void() <-chan struct{} { return q.void }

// Close says that nobody waits for the answer, or looks at it, any more.
func (q *Question) Close() {
	q.of.mu.Lock()
	defer q.of.mu.Unlock()
	delete(q.of.byID, q.key)
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

// Waits tells whether a request with this raw id waits for an answer.
func (a *Asked) Waits(id []byte) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.byID[gate.IDKey(id)] != nil
}

// TakeBack says that the request with this raw id is void.
func (a *Asked) TakeBack(id []byte) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if q := a.byID[gate.IDKey(id)]; q != nil {
		select {
		case <-q.void:
		default:
			close(q.void)
		}
	}
}

// Wants tells whether a request that waits has this raw token for its progress.
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
