package session

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
)

const (
	// maxAsked is the maximum number of requests of a server that wait for a session's client at a time. maxAskedMinute
	// is the maximum number of requests that a server may send in a minute, including refused ones.
	maxAsked       = 16
	maxAskedMinute = 600
)

// Errors of [Asked.Ask]. Compare with errors.Is.
var (
	// ErrAskedID means that the id of a request is neither a string nor an integer.
	ErrAskedID = errors.New("its id is neither a string nor an integer")
	// ErrAskedTwice means that a request with the same id is waiting.
	ErrAskedTwice = errors.New("another with this id waits")
	// ErrAskedTooMuch means that too many requests are waiting.
	ErrAskedTooMuch = errors.New("too many wait for this client")
	// ErrAskedFlood means that too many requests arrived in this minute. They must not be answered.
	ErrAskedFlood = errors.New("too many came in this minute")
	// ErrAskedClosed means that the session is closed.
	ErrAskedClosed = errors.New("the session is closed")
)

// Asked contains the requests that were sent to a session's client and wait for a response: requests of the gateway and
// of the server. The zero value is empty. It is safe for concurrent use.
type Asked struct {
	mu   sync.Mutex
	byID map[string]*Question
	// waiting is the number of the server's requests that wait. made is the number of requests that the server has sent
	// after the time since.
	waiting, made int
	since         time.Time
	closed        bool
}

// Question is a request that waits for a response. Its sender must close it.
type Question struct {
	of         *Asked
	own        bool // sent by the gateway
	key, token string
	answer     chan *jsonrpc.Message
	void       chan struct{}
	closed     chan struct{}
}

// Ask adds a request of the server with this raw id. Errors are [ErrAskedID], [ErrAskedTwice], [ErrAskedTooMuch],
// [ErrAskedFlood] and [ErrAskedClosed].
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
	return a.add(&Question{key: jsonrpc.IDKey(id)})
}

// AskOwn adds a request of the gateway, to which the limits for the server do not apply. Errors are [ErrAskedID],
// [ErrAskedTwice] and [ErrAskedClosed].
func (a *Asked) AskOwn(id []byte) (*Question, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.add(&Question{key: jsonrpc.IDKey(id), own: true})
}

// add adds a request. The caller holds the lock.
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
	q.of, q.answer, q.void, q.closed = a, make(chan *jsonrpc.Message, 1), make(chan struct{}), make(chan struct{})
	a.byID[q.key] = q
	if !q.own {
		a.waiting++
	}
	return q, nil
}

// Reports sets the raw token for progress of the request; nil if the request has none.
func (q *Question) Reports(token []byte) {
	q.of.mu.Lock()
	defer q.of.mu.Unlock()
	q.token = jsonrpc.IDKey(token)
}

// Answer returns the channel that receives the response. The response may be read until the question is closed.
func (q *Question) Answer() <-chan *jsonrpc.Message { return q.answer }

// Void returns a channel that is closed when the sender has cancelled the request or the session was closed.
func (q *Question) Void() <-chan struct{} { return q.void }

// Close removes the request. The response must not be read after that.
func (q *Question) Close() {
	q.of.mu.Lock()
	defer q.of.mu.Unlock()
	delete(q.of.byID, q.key)
	if !q.own {
		q.of.waiting--
	}
	close(q.closed)
}

// Answer passes a client's response to the sender of the request. It returns when the sender has closed the question or
// ctx is cancelled. A response without a waiting request, and a second response, are dropped.
func (a *Asked) Answer(ctx context.Context, m *jsonrpc.Message) {
	a.mu.Lock()
	q := a.byID[jsonrpc.IDKey(m.ID.Of(m.Raw))]
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

// Waits reports whether a request with this raw id waits for a response.
func (a *Asked) Waits(id []byte) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.byID[jsonrpc.IDKey(id)] != nil
}

// TakeBack cancels the server's request with this raw id.
func (a *Asked) TakeBack(id []byte) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if q := a.byID[jsonrpc.IDKey(id)]; q != nil && !q.own {
		q.end()
	}
}

// Close cancels all requests. After that, Ask and AskOwn fail.
func (a *Asked) Close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	for _, q := range a.byID {
		q.end()
	}
}

// end cancels a request. The caller holds the lock.
func (q *Question) end() {
	select {
	case <-q.void:
	default:
		close(q.void)
	}
}

// Wants reports whether a waiting request has this raw progress token.
func (a *Asked) Wants(token []byte) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	key := jsonrpc.IDKey(token)
	for _, q := range a.byID {
		if key != "" && q.token == key {
			return true
		}
	}
	return false
}
